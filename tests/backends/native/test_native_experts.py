"""Compiled mixtures of experts: what the ops' bodies give, at every instruction set, and the same bits whatever comes with a
token."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thalweg.backends.cpu.native import NativeLibrary, open_library
from thalweg.backends.cpu.native.experts import kernels
from thalweg.hal import ops
from thalweg.hal.op import Binder, BoundOp, Kernel
from thalweg.hal.ops.activation import SWIGLU_OAI
from thalweg.hal.ops.matmul import MXFP4
from thalweg.hal.ops.moe import Q4_K, Q6_K
from thalweg.hal.ops.quantise import quantise
from thalweg.hal.weights import DENSE, QTensor, WeightFormat

FORMATS = {
    "dense": (DENSE, DENSE),
    "int8": (WeightFormat("int", 8), WeightFormat("int", 8)),
    "int8-groups-zeros": (WeightFormat("int", 8, 64, symmetric=False),) * 2,
    "int4": (WeightFormat("int", 4, 32), WeightFormat("int", 4, 32)),
    "int4-zeros": (WeightFormat("int", 4, 64, symmetric=False),) * 2,
    "Q4_K_M": (Q4_K, Q6_K),
    "int4-and-dense": (WeightFormat("int", 4, 32), DENSE),
    "dense-and-int8": (DENSE, WeightFormat("int", 8)),
}
SHAPES = [(64, 32, 4, 2), (96, 80, 5, 3), (130, 18, 7, 2)]
"""(hidden, inner, experts, experts of a token): whole panels, panels that an expert does not fill, odd sizes."""
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
BOUND = {"bfloat16": 2e-2, "float32": 1e-5}
"""In bfloat16 gate, up, their product and what an expert makes of it are rounded, to 2^-9 each."""


class Case:
    """One mixture: its packed weights, and what the body takes."""

    def __init__(
        self, kernel: Kernel, shape: tuple[int, int, int, int], formats: tuple[WeightFormat, WeightFormat], dtype: str,
        act: str = "silu", gated: bool = True,
    ) -> None:  # fmt: skip
        hidden, inner, self.experts, self.k = shape
        self.generator, self.dtype = torch.Generator().manual_seed(hidden), DTYPES[dtype]
        self.facts: dict[str, Any] = {"experts": self.experts, "group": formats[0].group, "down_group": formats[1].group}
        self.facts |= {"act": act} if gated else {"gated": False, "act": "relu2"}
        spec = {"dtype": dtype, "weight": formats[0], "down_weight": formats[1], "biased": act == SWIGLU_OAI}
        self.bound: BoundOp = Binder([kernel]).bind(ops.experts, **spec, **self.facts)
        assert self.bound.choice.kernel == kernel.name
        sizes = (((1 + gated) * inner, hidden, formats[0]), (hidden, inner, formats[1]))
        pairs = [self._weight(*size) for size in sizes]
        self.packed, self.plain = [p for p, _ in pairs], [q for _, q in pairs]
        self.hidden, self.bias = hidden, ()
        if act == SWIGLU_OAI:  # large, so that what is cut off is
            self.bias = ((torch.randn(self.experts * 2 * inner, generator=self.generator) * 5).to(self.dtype),)

    def _weight(self, out: int, fan_in: int, format: WeightFormat) -> tuple[Any, Any]:
        dense = (torch.randn(self.experts * out, fan_in, generator=self.generator) / fan_in**0.5).to(self.dtype)
        if format == DENSE:
            return self.bound.pack(QTensor(DENSE, dense.shape, {"weight": dense}, self.experts)), dense
        made = quantise(dense, format)
        return self.bound.pack(QTensor(format, made.shape, made.data, self.experts)), dict(made.data)

    def batch(self, tokens: int, chosen: int | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens with their experts; `chosen`: of the first so many alone."""
        x = torch.randn(tokens, self.hidden, generator=self.generator).to(self.dtype)
        order = torch.rand(tokens, chosen or self.experts, generator=self.generator).argsort(-1)
        return x, order[:, : self.k].int(), torch.rand(tokens, self.k, generator=self.generator)

    def run(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.bound(x, ids, weights, *self.packed, *self.bias)
        return out

    def worst(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> float:
        """Largest difference from the body in float32, which rounds nothing on the way."""
        plain = [w.float() if isinstance(w, torch.Tensor) else w for w in self.plain]
        biases = [b.float() for b in self.bias]
        want = ops.experts.reference(x.float(), ids, weights, *plain, *biases, **self.facts)
        return ((self.run(x, ids, weights).float() - want).abs().max() / want.abs().max()).item()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("formats", FORMATS.values(), ids=FORMATS)
@pytest.mark.sampled(8)
def test_every_shape_equals_the_body_and_tokens_keep_their_bits(library: NativeLibrary, formats: Any, dtype: str) -> None:
    kernel, *_ = kernels(library)
    alone, *_ = kernels(open_library(1, library.level))
    for shape in SHAPES:
        case = Case(kernel, shape, formats, dtype)
        for tokens in (1, 2, 33):
            assert case.worst(*case.batch(tokens)) <= BOUND[dtype], (shape, tokens)
        x, ids, weights = case.batch(190)
        whole = case.run(x, ids, weights)
        assert torch.equal(Case(alone, shape, formats, dtype).run(x, ids, weights), whole), "by one thread"
        for first, n in ((0, 1), (7, 3), (30, 64), (3, 187)):
            part = slice(first, first + n)
            assert torch.equal(case.run(x[part], ids[part], weights[part]), whole[part]), (shape, n)
        turned = torch.arange(case.k - 1, -1, -1)
        assert torch.equal(case.run(x, ids[:, turned], weights[:, turned]), whole), "in whatever order experts are named"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("formats", [(DENSE, DENSE), (MXFP4, MXFP4)], ids=str)
def test_biased_gates_that_are_cut_off_are_those_of_the_body(library: NativeLibrary, formats: Any, dtype: str) -> None:
    """As gpt-oss has them, in bfloat16 and as published."""
    kernel, *_ = kernels(library)
    alone, *_ = kernels(open_library(1, library.level))
    for shape in ((64, 32, 4, 2), (96, 64, 5, 3)):
        case = Case(kernel, shape, formats, dtype, SWIGLU_OAI)
        for tokens in (1, 33):
            assert case.worst(*case.batch(tokens)) <= BOUND[dtype], (shape, tokens)
        x, ids, weights = case.batch(190)
        whole = case.run(x, ids, weights)
        assert torch.equal(Case(alone, shape, formats, dtype, SWIGLU_OAI).run(x, ids, weights), whole), "by one thread"
        assert torch.equal(case.run(x[30:94], ids[30:94], weights[30:94]), whole[30:94])
    with pytest.raises(ValueError, match="experts: a bias of"):
        case.bound(x, ids, weights, *case.packed, case.bias[0][1:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.sampled(2)
def test_more_rows_than_are_made_ready_at_once_keep_their_bits(library: NativeLibrary, dtype: str) -> None:
    """Pairs are parted within an expert, at its end, and where all tokens have the same experts."""
    kernel, *_ = kernels(library)
    case = Case(kernel, (2304, 16, 6, 2), FORMATS["int8"], dtype)  # 384 pairs at a time
    for tokens, chosen in ((700, None), (193, 2), (400, 2)):
        x, ids, weights = case.batch(tokens, chosen)
        whole = case.run(x, ids, weights)
        assert case.worst(x[:40], ids[:40], weights[:40]) <= BOUND[dtype]
        for first in (0, tokens // 2, tokens - 60):
            part = slice(first, first + 60)
            assert torch.equal(case.run(x[part], ids[part], weights[part]), whole[part]), (tokens, chosen, first)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["dense", "int8", "int4-zeros"])
def test_experts_without_gates_equal_the_body(library: NativeLibrary, name: str, dtype: str) -> None:
    kernel, *_ = kernels(library)
    for shape in SHAPES:
        case = Case(kernel, shape, FORMATS[name], dtype, gated=False)
        x, ids, weights = case.batch(40)
        assert case.worst(x, ids, weights) <= BOUND[dtype], shape
        assert torch.equal(case.run(x[7:9], ids[7:9], weights[7:9]), case.run(x, ids, weights)[7:9])
    refused = Binder([kernel]).bind(
        ops.experts, dtype=dtype, weight=DENSE, down_weight=DENSE, act="relu", gated=False, experts=4
    )
    assert dict(refused.choice.refused)[kernel.name] == "runs silu, gelu_tanh, gelu, relu2, not relu"


def make_adapters(case: Case, inner: int, slots: int, rank: int) -> tuple[torch.Tensor, ...]:
    """Arrays of `lora_experts`, with NaN where nothing may be read. Slot 1 changes one expert, and only its products down."""
    rng, count = case.generator, case.experts
    shapes = ((2 * rank, case.hidden), (rank, 2 * inner), (rank, inner), (rank, case.hidden))
    arrays = [torch.randn(slots, count, *s, generator=rng) / s[1] ** 0.5 for s in shapes]
    ranks = torch.randint(0, rank + 1, (slots, count, 3), generator=rng, dtype=torch.int32)
    ranks[1] = 0
    ranks[1, 1, 2] = rank
    held = (torch.arange(rank) < ranks[..., None]).transpose(0, 2)  # [3, count, slots, rank]
    gate, up, down = (part.transpose(0, 1) for part in held)
    arrays[0][~torch.cat([gate, up], -1)] = torch.nan
    wide = torch.cat([part[..., None].expand(slots, count, rank, inner) for part in (gate, up)], -1)
    arrays[1][~wide] = torch.nan
    for a in arrays[2:]:
        a[~down] = torch.nan
    for a in arrays:
        a[0] = torch.nan
    return *(a.to(case.dtype) for a in arrays), ranks


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["dense", "int4-zeros", "Q4_K_M"])
@pytest.mark.sampled(3)
def test_adapted_experts_equal_the_body_and_rows_without_an_adapter_those_without_it(
    library: NativeLibrary, name: str, dtype: str
) -> None:
    """In any company, by any number of threads, and over as many rows as are not made ready at once."""
    for shape, tokens in (((96, 80, 5, 3), 150), ((2304, 16, 6, 2), 400)):
        plain_kernel, adapted, _ = kernels(library)
        case = Case(plain_kernel, shape, FORMATS[name], dtype)
        arrays, (x, ids, weights) = make_adapters(case, shape[1], 4, 11), case.batch(tokens)
        slots = torch.randint(0, 4, (tokens,), generator=case.generator, dtype=torch.int32)

        def run(index: torch.Tensor, kernel: Kernel = adapted) -> torch.Tensor:
            """The rows of this index."""
            out: torch.Tensor = kernel.run(
                x[index], ids[index], weights[index], *case.packed, slots[index], *arrays, **case.facts  # noqa: B023
            )  # fmt: skip
            return out

        whole = run(torch.arange(tokens))
        few = torch.arange(40)
        plain = [w.float() if isinstance(w, torch.Tensor) else w for w in case.plain]
        wide = [a.nan_to_num().float() if a.is_floating_point() else a for a in arrays]
        want = ops.lora_experts.reference(x[:40].float(), ids[:40], weights[:40], *plain, slots[:40], *wide, **case.facts)
        assert (whole[:40].float() - want).abs().max() <= 2 * BOUND[dtype] * want.abs().max()
        assert torch.equal(whole[slots == 0], case.run(x, ids, weights)[slots == 0])
        assert not torch.equal(whole[slots == 2], case.run(x, ids, weights)[slots == 2])
        for index in (few, torch.arange(tokens - 1, -1, -1), torch.tensor([7]), torch.tensor([3, 90, 4])):
            assert torch.equal(run(index), whole[index])
        one = kernels(open_library(1, library.level))[1]
        assert torch.equal(run(few, one), whole[few]), "by one thread"


def test_experts_without_a_row_are_not_read(library: NativeLibrary) -> None:
    kernel, *_ = kernels(library)
    case = Case(kernel, (64, 32, 5, 2), FORMATS["dense"], "float32")
    data = case.plain[0].clone()
    data[64:128] = float("nan")  # of expert 1
    poisoned = case.bound.pack(QTensor(DENSE, data.shape, {"weight": data}, case.experts))
    x, ids, weights = case.batch(9)
    ids = torch.tensor([[0, 2], [3, 4], [2, 3]] * 3, dtype=torch.int32)
    want = case.run(x, ids, weights)
    case.packed[0] = poisoned
    assert torch.equal(case.run(x, ids, weights), want)
    ids[4, 1] = 1
    got = case.run(x, ids, weights)
    assert got[4].isnan().all()
    assert got[[i for i in range(9) if i != 4]].isfinite().all()


def test_a_pair_that_names_no_expert_counts_for_nothing(library: NativeLibrary) -> None:
    kernel, *_ = kernels(library)
    case = Case(kernel, (64, 32, 5, 2), FORMATS["int4"], "float32")
    x, ids, weights = case.batch(6)
    ids[0, 1], ids[3, 0], ids[5] = -1, 5, 1 << 20
    assert case.worst(x, ids, weights) <= 1e-5
    assert case.run(x, ids, weights)[5].eq(0).all()
    assert case.run(x[5:], ids[5:], weights[5:]).eq(0).all()
    assert case.run(x[:0], ids[:0], weights[:0]).shape == (0, 64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["dense", "int8", "int8-groups-zeros", "int4-zeros"])
def test_weights_from_where_they_lie_are_those_packed_whole(library: NativeLibrary, name: str, dtype: str) -> None:
    kernel, *_ = kernels(library)
    case = Case(kernel, (128, 64, 3, 2), FORMATS[name], dtype)
    assert kernel.pack.mapped is not None
    mapped = []
    for out, fan_in, rows, format in ((128, 128, 64, FORMATS[name][0]), (128, 64, 128, FORMATS[name][1])):
        dense = torch.randn(3 * out, fan_in, generator=case.generator).to(case.dtype)
        bits = dense.view(torch.int16).numpy().view("uint16") if dtype == "bfloat16" else dense.numpy()
        mapped.append(kernel.pack.mapped([bits[i : i + rows] for i in range(0, 3 * out, rows)], format))
        made = QTensor(DENSE, dense.shape, {"weight": dense}, 3) if format == DENSE else quantise(dense, format)
        case.packed[len(mapped) - 1] = case.bound.pack(QTensor(format, made.shape, made.data, 3))
    batch = case.batch(11)
    want = case.run(*batch)
    case.packed = mapped
    assert torch.equal(case.run(*batch), want)
    assert kernel.pack.mapped([bits[:32], bits[32:64]], DENSE) is None, "where a matrix may end within a panel"


def test_what_does_not_fit_and_what_is_not_run_is_said(library: NativeLibrary) -> None:
    kernel, _, route = kernels(library)
    case = Case(kernel, (64, 32, 4, 2), FORMATS["dense"], "float32")
    x, ids, weights = case.batch(3)
    for wrong in ((x[:, :32], ids, weights), (x.bfloat16(), ids, weights), (x, ids.long(), weights), (x, ids[:2], weights)):
        with pytest.raises(ValueError, match="experts: "):
            case.run(*wrong)
    facts = {"experts": 4, "dtype": "float32", "weight": DENSE, "down_weight": DENSE}
    for more, reason in (
        ({"act": "relu"}, "runs silu, gelu_tanh, gelu, silu_clamp_, silu_cut_, situ_, swiglu_oai, not relu"),
        ({"dtype": "float16"}, "runs bfloat16 and float32"),
        ({"down_weight": WeightFormat("int", 3, 32)}, "not int3"),
        ({"weight": WeightFormat("int", 8, act="int8")}, "rounds no inputs, not int8-row-int8"),
    ):  # fmt: skip
        (refused,) = Binder([kernel]).bind(ops.experts, **(facts | more)).choice.refused
        assert reason in refused[1]
    with pytest.raises(ValueError, match="route: "):
        route.run(torch.zeros(2, 4), k=5, scores="softmax", renormalise=True)


ROUTES: dict[str, dict[str, Any]] = {
    "softmax": {"k": 8, "scores": "softmax", "renormalise": True},
    "softmax-as-it-is": {"k": 1, "scores": "softmax", "renormalise": False, "scale": 0.5},
    "sigmoid": {"k": 60, "scores": "sigmoid", "renormalise": True},
    "groups": {"k": 6, "scores": "sigmoid", "renormalise": True, "scale": 2.5, "groups": 10, "top_groups": 4},
    "groups-of-one": {"k": 3, "scores": "softmax", "renormalise": False, "groups": 60, "top_groups": 7},
}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ROUTES)
def test_tokens_go_where_the_body_sends_them(library: NativeLibrary, name: str, biased: bool) -> None:
    *_, route = kernels(library)
    generator, facts = torch.Generator().manual_seed(7), ROUTES[name]
    logits = torch.randn(500, 60, generator=generator) * 3
    bias = torch.randn(60, generator=generator) / 3 if biased else None
    ids, weights = route.run(logits, bias, **facts)
    want_ids, want = ops.route.reference(logits, bias, **facts)
    assert torch.equal(ids, want_ids)
    torch.testing.assert_close(weights, want, rtol=1e-5, atol=1e-7)
    for part in (slice(3, 4), slice(100, 499)):
        got = route.run(logits[part], bias, **facts)
        assert torch.equal(got[0], ids[part])
        assert torch.equal(got[1], weights[part])


def test_equal_scores_go_to_the_lower_expert_and_nan_to_the_first(library: NativeLibrary) -> None:
    *_, route = kernels(library)
    ids, weights = route.run(torch.zeros(2, 6), k=3, scores="softmax", renormalise=True)
    assert ids.tolist() == [[0, 1, 2]] * 2
    assert weights.flatten().tolist() == pytest.approx([1 / 3] * 6)
    ids, weights = route.run(torch.full((1, 6), float("nan")), k=3, scores="softmax", renormalise=True)
    assert ids.tolist() == [[0, 1, 2]]
    assert weights.isnan().all()
    logits = torch.tensor([[1.0, float("nan"), 3.0, 2.0]])
    assert route.run(logits, k=2, scores="sigmoid", renormalise=False)[0].tolist() == [[1, 2]]
