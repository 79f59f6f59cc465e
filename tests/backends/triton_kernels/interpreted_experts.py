"""Experts in the interpreter beyond the conformance kit: run by test_triton_library in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.backends.triton_kernels import groups
from thalweg.backends.triton_kernels.testing import InterpretPlatform
from thalweg.backends.triton_kernels.tiles import tiles
from thalweg.hal import ops
from thalweg.hal.device import Device
from thalweg.hal.op import Binder, Kernel
from thalweg.hal.ops.activation import CLAMP, CUT, SWIGLU_OAI
from thalweg.hal.ops.matmul import INT4_GROUPS, MXFP4, NF4
from thalweg.hal.ops.quantise import quantise
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE, QTensor, WeightFormat

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))

PLATFORM = "thalweg.backends.triton_kernels.testing:InterpretPlatform"


@pytest.fixture(scope="module")
def device() -> Device:
    return InterpretPlatform().open(Place())


def _kernel(device: Device, op: str = "experts", **facts: Any) -> Kernel:
    """The first one that runs an op of these facts."""
    return next(k for k in device.kernels if k.op == op and k.supports(facts) is None)


@pytest.mark.parametrize("pair", [(DENSE, NF4), (INT4_GROUPS, DENSE), (NF4, WeightFormat("float", 8))], ids=str)
def test_experts_of_two_formats_are_those_of_the_definition(device: Device, pair: tuple[WeightFormat, WeightFormat]) -> None:
    rng = torch.Generator().manual_seed(3)
    x, weights = torch.randn(3, 64, generator=rng), torch.rand(3, 2, generator=rng)
    ids = torch.tensor([[0, 2], [2, 1], [0, 1]], dtype=torch.int32)
    dense = [torch.randn(*shape, generator=rng) / 8 for shape in ((3 * 2 * 32, 64), (3 * 64, 32))]
    held = [
        QTensor(DENSE, tuple(w.shape), {"weight": w}) if f == DENSE else quantise(w, f)
        for w, f in zip(dense, pair, strict=True)
    ]  # fmt: skip
    static = {"experts": 3, "act": "silu", "group": pair[0].group, "down_group": pair[1].group}
    facts = {"weight": pair[0], "down_weight": pair[1], "dtype": "float32"} | static
    kernel = _kernel(device, **facts)
    assert kernel.name.startswith("triton-mixed")
    got = kernel.run(x, ids, weights, *(kernel.pack(w) for w in held), **static)
    want = ops.experts.reference(x, ids, weights, *(w.data.get("weight", w.data) for w in held), **static)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


def _assign_by_sorting(ids: torch.Tensor, experts: int, m: int) -> tuple[torch.Tensor, ...]:
    """starts, ends, firsts, pairs and tile_expert of `groups.assign`, by torch's sort."""
    flat = ids.reshape(-1)
    pairs = torch.argsort(flat, stable=True)
    each = torch.bincount(flat, minlength=experts)[:experts]
    ends, after = each.cumsum(0), ((each + m - 1) // m).cumsum(0)
    most = min(len(flat), -(-len(flat) // m) + experts)
    owner = (torch.arange(most)[:, None] >= after).sum(1)
    return ends - each, ends, after - (each + m - 1) // m, pairs, owner


@pytest.mark.parametrize("way", ["one program", "ranked", "sorted"])
@pytest.mark.parametrize(("tokens", "each", "experts", "m"), [(1, 4, 8, 16), (7, 2, 5, 16), (90, 3, 33, 16), (300, 1, 2, 64)])
def test_pairs_lie_by_expert_in_their_order_and_tiles_have_one_expert(
    device: Device, monkeypatch: pytest.MonkeyPatch, way: str, tokens: int, each: int, experts: int, m: int
) -> None:
    """Nobody's pairs (adapters' rows without one) come last and have no tile. Few pairs have one program, more are ranked,
    many sorted."""
    if way != "one program":
        monkeypatch.setattr(groups, "FEW", 0)
    if way == "sorted":
        monkeypatch.setattr(groups, "MOST_RANKED", 0)
    drawn = np.random.default_rng(tokens).integers(0, experts + (each == 1), (tokens, each))
    ids = torch.from_numpy(drawn.astype(np.int32))
    for got, want in zip(groups.assign(tiles("interpret"), ids, experts, m), _assign_by_sorting(ids, experts, m), strict=True):
        assert got.tolist() == want.tolist()


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_logits_are_widened_in_the_launch_that_routes(device: Device, scores: str) -> None:
    kernel = _kernel(device, op="route", logits="bfloat16", experts=24)
    rng = torch.Generator().manual_seed(8)
    logits, bias = torch.randn(9, 24, generator=rng).to(torch.bfloat16), torch.randn(24, generator=rng)
    static = {"k": 4, "scores": scores, "renormalise": True}
    for got, want in zip(kernel.run(logits, bias, **static), kernel.run(logits.float(), bias, **static), strict=True):
        assert torch.equal(got, want)
    for got, want in zip(kernel.run(logits, bias, **static), ops.route.reference(logits, bias, **static), strict=True):
        torch.testing.assert_close(got, want)


def test_a_token_s_bits_are_the_same_in_whatever_tile_of_its_experts(device: Device) -> None:
    product, kernel = tiles("interpret").product, _kernel(device, weight=DENSE, down_weight=DENSE, dtype="bfloat16", act="silu")
    assert {next(t for t in product.experts if t.serves(n, 1)) for n in (1, 20)} == set(product.experts)
    rng = torch.Generator().manual_seed(5)
    x, shares = torch.randn(40, 96, generator=rng).to(torch.bfloat16), torch.rand(40, 1, generator=rng)
    ids = torch.randint(0, 2, (40, 1), generator=rng, dtype=torch.int32)
    up, down = (torch.randn(*s, generator=rng).to(torch.bfloat16) / 8 for s in ((2 * 2 * 48, 96), (2 * 96, 48)))
    held = [kernel.pack(QTensor(DENSE, tuple(w.shape), {"weight": w})) for w in (up, down)]
    whole = kernel.run(x, ids, shares, *held, experts=2)
    for n in (1, 2, 40):
        assert torch.equal(kernel.run(x[:n], ids[:n], shares[:n], *held, experts=2), whole[:n])


@pytest.mark.parametrize("format", [DENSE, MXFP4], ids=str)
def test_adapted_rows_keep_their_bits_and_those_without_an_adapter_are_of_the_plain_kernel(
    device: Device, format: WeightFormat
) -> None:
    """Tiles with rows of several slots, and sizes that no block divides."""
    rng, (tokens, hidden, ffn, count, slots, rank) = torch.Generator().manual_seed(5), (37, 96, 80, 2, 4, 5)
    facts = {"weight": format, "down_weight": format, "dtype": "bfloat16", "act": "silu"}
    static = {"experts": count, "act": "silu", "group": format.group, "down_group": format.group}
    plain = _kernel(device, **facts)
    (adapted,) = (k for k in device.kernels if k.op == "lora_experts" and k.pack == plain.pack)
    assert (adapted.name, adapted.supports(facts)) == (plain.name, None)
    x, shares = torch.randn(tokens, hidden, generator=rng).to(torch.bfloat16), torch.rand(tokens, 2, generator=rng)
    ids = torch.tensor([[0, 1]], dtype=torch.int32).expand(tokens, 2).contiguous()
    dense = [torch.randn(*s, generator=rng).to(torch.bfloat16) / 8 for s in ((2 * count * ffn, hidden), (count * hidden, ffn))]
    held = [QTensor(DENSE, tuple(w.shape), {"weight": w}) if format == DENSE else quantise(w, format) for w in dense]
    sizes = ((2 * rank, hidden), (rank, 2 * ffn), (rank, ffn), (rank, hidden))
    arrays = [(torch.randn(slots, count, *s, generator=rng) / s[1] ** 0.5).to(torch.bfloat16) for s in sizes]
    ranks = torch.randint(1, rank + 1, (slots, count, 3), generator=rng, dtype=torch.int32)
    ranks[3] = 0
    slot, packed = torch.arange(tokens, dtype=torch.int32) % slots, [plain.pack(w) for w in held]

    def run(index: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = adapted.run(x[index], ids[index], shares[index], *packed, slot[index], *arrays, ranks, **static)
        return out

    whole, base = run(torch.arange(tokens)), plain.run(x, ids, shares, *packed, **static)
    same = slot % 3 == 0
    assert torch.equal(whole[same], base[same])
    for index in (torch.tensor([1]), torch.tensor([30, 2, 1])):
        assert torch.equal(run(index), whole[index])
    bodies = [w.data.get("weight", w.data) for w in held]
    want = ops.lora_experts.reference(x, ids, shares, *bodies, slot, *arrays, ranks, **static)
    assert (whole.float() - want.float()).abs().max() <= 2e-2 * want.float().abs().max()


def _make_experts(format: WeightFormat, dtype: str) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """(arguments of the body, static arguments, facts) of experts whose gates exceed 7, and whose sizes neither tiles nor
    chunks of codes divide."""
    rng, (count, hidden, ffn, tokens, k) = torch.Generator().manual_seed(8), (5, 104, 72, 7, 3)
    kind = getattr(torch, dtype)
    x, weights = torch.randn(tokens, hidden, generator=rng).to(kind), torch.rand(tokens, k, generator=rng)
    ids = torch.stack([torch.randperm(count - 1, generator=rng)[:k] for _ in range(tokens)]).to(torch.int32)
    held = []
    for shape, scale in (((count * 2 * ffn, hidden), 5.0), ((count * hidden, ffn), 1.0)):
        w = (torch.randn(*shape, generator=rng) * scale / shape[1] ** 0.5).to(kind)
        held.append(QTensor(DENSE, shape, {"weight": w}) if format == DENSE else quantise(w, format))
    biases = [torch.randn(count * n, generator=rng).to(kind) for n in (2 * ffn, hidden)]
    static = {"experts": count, "group": format.group, "down_group": format.group}
    facts = {"weight": format, "down_weight": format, "dtype": dtype, "biased": True, "down_biased": True} | static
    return [x, ids, weights, *held, *biases], static, facts


def _run_body(args: Sequence[Any], static: dict[str, Any]) -> torch.Tensor:
    plain = [a.data.get("weight", a.data) if isinstance(a, QTensor) else a for a in args]
    out: torch.Tensor = ops.experts.reference(*plain, **static)
    return out


@pytest.mark.parametrize(
    ("act", "format"),
    [(SWIGLU_OAI, DENSE), (SWIGLU_OAI, MXFP4), (f"{CUT}2.5", MXFP4), (f"{CLAMP}2.5", MXFP4), ("silu", NF4)],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_biases_and_clamped_gates_of_experts_are_those_of_the_definition(
    device: Device, act: str, format: WeightFormat, dtype: str
) -> None:
    args, static, facts = _make_experts(format, dtype)
    static["act"] = act
    kernel = _kernel(device, **facts, act=act)
    got = kernel.run(*(kernel.pack(a) if isinstance(a, QTensor) else a for a in args), **static)
    want = _run_body(args, static)
    close = {"rtol": 2e-5, "atol": 1e-4} if dtype == "float32" else {"rtol": 2e-2, "atol": 1e-2 * float(want.abs().max())}
    torch.testing.assert_close(got, want, **close)
    bare = _run_body([*args[:-1], torch.zeros_like(args[-1])], static)
    assert (bare.float() - want.float()).abs().max() > 0.5, "the bias of down is to show"


def test_a_broken_token_stays_broken_where_gates_are_clamped_and_breaks_no_other(device: Device) -> None:
    """NaN is neither above nor below a bound, and no number may come of it."""
    args, static, facts = _make_experts(MXFP4, "float32")
    for act in (SWIGLU_OAI, f"{CUT}2.5", f"{CLAMP}2.5"):
        kernel = _kernel(device, **facts, act=act)
        packed = [kernel.pack(a) if isinstance(a, QTensor) else a for a in args]
        whole = kernel.run(*packed, **static, act=act)
        broken = args[0].clone()
        broken[4, 7] = float("nan")
        got = kernel.run(broken, *packed[1:], **static, act=act)
        assert got[4].isnan().all()
        others = torch.arange(len(got)) != 4
        assert torch.equal(got[others], whole[others])


def test_gpt_oss_generates_what_the_reference_generates_with_all_of_its_experts_in_kernels(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rig import Rig
    from zoo import make_checkpoint  # here, as the other tests need no family of transformers

    path, prompts = make_checkpoint("gpt-oss", tmp_path, tokenizer=False), ([5, 9, 2, 7, 7, 1, 30, 4, 8, 11, 3], [3, 1, 4])
    want = Rig(path).generate(prompts, 2, chunk=6, budget=8)
    binders: list[Binder] = []

    def bind(*args: Any, **more: Any) -> Binder:
        binders.append(Binder(*args, **more))
        return binders[-1]

    monkeypatch.setattr("rig.Binder", bind)
    got = Rig(path, platform=PLATFORM).generate(prompts, 2, chunk=6, budget=8)
    (choice,) = [c for c in binders[0].bindings if c.op == "experts"]
    assert choice.kernel.startswith("triton")
    assert choice.spec["down_biased"] is True
    for w, g in zip(want, got, strict=True):
        assert g.tokens == w.tokens
        np.testing.assert_allclose(g.logprobs, w.logprobs, atol=2e-5)
