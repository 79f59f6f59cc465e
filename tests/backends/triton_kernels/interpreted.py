"""Kernels in the interpreter beyond the conformance kit: run by test_triton_library in a process of its own."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from thalweg.backends.triton_kernels import attention, codes, paged, sampling, truncation
from thalweg.backends.triton_kernels.quantised import E2M1, SCALED
from thalweg.backends.triton_kernels.sampling import _gumbel
from thalweg.backends.triton_kernels.testing import InterpretOptions, InterpretPlatform
from thalweg.backends.triton_kernels.tiles import FOURS, tiles
from thalweg.hal import noise, ops
from thalweg.hal.attention import AttnSpec, QKPrologue
from thalweg.hal.device import Device
from thalweg.hal.op import Kernel
from thalweg.hal.ops.matmul import INT4, INT4_GROUPS, MXFP4, NF4
from thalweg.hal.ops.quantise import quantise
from thalweg.hal.platform import Place
from thalweg.hal.step import StepShape
from thalweg.hal.testing import sequences as seq
from thalweg.hal.weights import WeightFormat

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
from rig import Rig, Seq
from zoo import make_checkpoint

PLATFORM = "thalweg.backends.triton_kernels.testing:InterpretPlatform"
PROMPTS = ([5, 9, 2, 7, 7, 1, 30, 4, 8, 11, 3], [3, 1, 4])


@pytest.fixture(scope="module")
def device() -> Device:
    return InterpretPlatform().open(Place())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_of_a_product_is_the_same_bits_wherever_it_stands_whatever_numpy_does(
    device: Device, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries for some processors sum a row in an order that follows its place in the tile: here, odd rows backwards."""
    plain = np.matmul

    def matmul(a: np.ndarray, b: np.ndarray, **more: Any) -> np.ndarray:
        forth, back = plain(a, b, **more), plain(a[..., ::-1].copy(), b[..., ::-1, :].copy(), **more)
        return np.where(np.arange(a.shape[-2])[:, None] % 2, back * np.float32(1 + 2**-22), forth)

    monkeypatch.setattr(np, "matmul", matmul)
    x, weight = (torch.randn(*shape).to(getattr(torch, dtype)) for shape in ((6, 64), (32, 64)))
    linear = _kernel(device, "linear")
    whole = linear.run(x, weight)
    torch.testing.assert_close(whole.float(), x.float() @ weight.float().T, rtol=2e-2, atol=2e-2)
    for order in ([5], [3, 2], [1, 0, 5, 4, 3]):
        assert torch.equal(linear.run(x[order], weight), whole[order])


SIZES = {20: (1, 40), 48: (1, 3, 17, 40), 100: (1, 40)}
"""Columns of a weight -> rows: together they meet every tile of a product."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_of_a_product_is_the_same_bits_in_whatever_tile(device: Device, dtype: str) -> None:
    """Few rows and many take other tiles, and so do weights too small for all of a device: one order of sums for all."""
    product = tiles("interpret").product
    x, linear = torch.randn(40, 600).to(getattr(torch, dtype)), _kernel(device, "linear")
    assert {product.choose("dense", n, cols) for cols, rows in SIZES.items() for n in rows} == set(product.dense)
    for cols, rows in SIZES.items():
        weight = torch.randn(cols, 600).to(x.dtype)
        whole = linear.run(x, weight)
        torch.testing.assert_close(whole.float(), x.float() @ weight.float().T, rtol=2e-2, atol=2e-1)
        for n in rows:
            assert torch.equal(linear.run(x[:n], weight), whole[:n])


CODED = {
    "codes": (WeightFormat("int", 8, 32), "", 96), "int8": (WeightFormat("int", 8, act="int8"), "", 96),
    "float8": (WeightFormat("float", 8, act="float8_e4m3fn"), "float8_e4m3fn", 96), "four": (INT4, "", 640),
    "grouped": (replace(INT4, group=64, symmetric=False), "", 640),
    "scaled": (replace(INT4, group=64, symmetric=False), "", 640),
    "four of groups of 32": (MXFP4, "", 600), "four with minima": (WeightFormat("int", 4, 32, symmetric=False), "", 600),
}  # fmt: skip
"""What a product multiplies -> (a format, the 8-bit float of the target, inputs)."""


@pytest.mark.parametrize("operands", CODED)
def test_a_row_of_a_quantised_product_is_the_same_bits_in_whatever_tile(operands: str) -> None:
    """Sums of 4-bit codes are cut into slices, which few rows make in programs of their own."""
    format, native, width = CODED[operands]
    device = InterpretPlatform().with_options(InterpretOptions(float8=native)).open(Place())
    product, rng = tiles("interpret").product, torch.Generator().manual_seed(6)
    kernels = [k for k in device.kernels if k.op == "linear" and k.batch_invariant]
    kind = operands.split()[0]
    kernel = next(
        k
        for k in kernels
        if k.supports({"weight": format, "dtype": "bfloat16"}) is None and (k.name == SCALED) == (kind == "scaled")
    )
    met = {product.choose(kind, n, cols, width) for cols, rows in SIZES.items() for n in rows}
    assert met == set(getattr(product, kind))
    assert kind not in FOURS or (width > product.slice and any(t.shared for t in met))
    x = torch.randn(40, width, generator=rng).to(torch.bfloat16)
    for cols, rows in SIZES.items():
        held = quantise(torch.randn(cols, width, generator=rng), format)
        weight = kernel.pack(held)
        whole = kernel.run(x, weight, act=format.act, group=format.group)
        if not format.act:
            want = ops.linear.reference(x.float(), held.data, group=format.group)
            torch.testing.assert_close(whole.float(), want, rtol=2e-2, atol=2e-1)
        for n in rows:
            assert torch.equal(kernel.run(x[:n], weight, act=format.act, group=format.group), whole[:n])
        assert "done" not in weight or not weight["done"].any()


@pytest.mark.parametrize("kind", ["int4", "e2m1"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_instructions_for_two_codes_give_the_numbers_of_the_format(kind: str, dtype: str) -> None:
    """Every word of four codes, by an emulation of what NVIDIA's instructions are documented to do."""
    words = torch.arange(1 << 16).view(-1, 2)
    pair = words[:, 0] | words[:, 1] << 16
    number = torch.bfloat16 if dtype == "bf16" else torch.float16
    zero = 5
    above = torch.full((len(pair), 2), -(128 if dtype == "bf16" else 1024) - zero).to(number)
    levels = torch.tensor([*E2M1, *(-v for v in E2M1)])
    for q in range(4):
        nibble = (words >> (4 * q)) & 15
        want = (nibble - zero).float() if kind == "int4" else levels[nibble]
        made = _emulate(codes.write_pairs(kind, dtype, q), pair, _join(above), number)
        assert torch.equal(_split(made, number).float(), want)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_instructions_for_two_scaled_codes_give_rounded_products(dtype: str) -> None:
    """Those of the format, rounded once, but for a few that lie next to the middle of two numbers."""
    words = torch.arange(1 << 16).view(-1, 2)
    pair = words[:, 0] | words[:, 1] << 16
    number, zero = torch.bfloat16 if dtype == "bf16" else torch.float16, 5
    rng = torch.Generator().manual_seed(1)
    scale = (torch.rand(len(pair), 1, generator=rng) * 0.1 + 1e-2).expand(-1, 2)
    high = scale.to(number)
    low = (scale - high.float()).to(number)
    above = torch.full((len(pair), 2), -(128 if dtype == "bf16" else 1024) - zero).to(number)
    for q in range(4):
        text = codes.write_scaled_pairs(dtype, q)
        made = _split(_emulate(text, pair, _join(above), number, _join(high), _join(low)), number)
        want = ((((words >> (4 * q)) & 15) - zero) * scale).to(number)
        assert (made == want).float().mean() > 0.99
        torch.testing.assert_close(made.float(), want.float(), rtol=2**-7 if dtype == "bf16" else 2**-10, atol=0)


def _join(pairs: torch.Tensor) -> torch.Tensor:
    bits = pairs.view(torch.int16).to(torch.int64) & 0xFFFF
    return bits[:, 0] | bits[:, 1] << 16


def _split(words: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return torch.stack([words & 0xFFFF, words >> 16], 1).to(torch.int32).to(torch.int16).view(kind)


def _emulate(
    text: str, word: torch.Tensor, above: torch.Tensor, kind: torch.dtype, *more: torch.Tensor
) -> torch.Tensor:  # fmt: skip
    """PTX of 32-bit shifts, masks and fused multiply-adds of pairs: $0 of $1, $2 and more. A product and sum of few bits is
    exact in float64, and the sum is then rounded once."""
    held: dict[str, Any] = {"$1": word, "$2": above} | {f"${i}": v for i, v in enumerate(more, 3)}

    def read(name: str) -> Any:
        return held[name] if name in held else torch.tensor(int(name, 0))

    for line in text.strip("{}").split(";"):
        name, *given = line.replace(",", " ").split() or [""]
        if name in ("", ".reg"):
            continue
        to, *values = given
        a = [read(v) for v in values]
        match name.split(".")[0]:
            case "mov":
                held[to] = a[0]
            case "shr":
                held[to] = a[0] >> a[1]
            case "shl":
                held[to] = (a[0] << a[1]) & 0xFFFFFFFF
            case "and":
                held[to] = a[0] & a[1]
            case "lop3":
                assert values[3] == "0xEA"
                held[to] = (a[0] & a[1]) | a[2]
            case "fma":
                x, y, z = (_split(v.expand(len(word)), kind).double() for v in a)
                held[to] = _join((x * y + z).to(kind))
            case _:
                raise AssertionError(line)
    return held["$0"]  # type: ignore[no-any-return]


SHIFTED = {
    "zeros of 16": WeightFormat("int", 4, 16, symmetric=False),
    "zeros of 16, 8 bits": WeightFormat("int", 8, 16, symmetric=False),
    "minima of rows": WeightFormat("int", 8, symmetric=False, mins=True),
    "minima of 16": WeightFormat("int", 8, 16, symmetric=False, mins=True), "minima of 128": replace(INT4_GROUPS, group=128),
    "table of rows": replace(NF4, group=0), "table of 16": replace(NF4, group=16),
}  # fmt: skip


@pytest.mark.parametrize("name", SHIFTED)
def test_weights_made_one_by_one_are_those_of_the_definition(device: Device, name: str) -> None:
    """Rows that end within a chunk, and forms that no sample of the kit has."""
    format, rng = SHIFTED[name], torch.Generator().manual_seed(2)
    weight = quantise(torch.randn(70, 200, generator=rng) + 0.5, format)
    x, bias = torch.randn(5, 200, generator=rng), torch.randn(70, generator=rng)
    kernel = _kernel(device, "linear", weight=format, dtype="float32")
    got = kernel.run(x, kernel.pack(weight), bias, group=format.group)
    want = ops.linear.reference(x, weight.data, bias, group=format.group)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


@triton.jit
def _show(out, lo, hi, p, BLOCK: tl.constexpr):
    t = tl.arange(0, BLOCK)
    zero = t.to(tl.uint32) * 0
    tl.store(out + t, _gumbel(zero + lo, zero + hi, zero + p, t.to(tl.uint32)))


def _rows_to_cut() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Rows that take every way through truncation where 64 groups of 4 are held: likely tokens few and many, many equal ones,
    almost all masked, all masked, greedy, and not truncated."""
    rng, vocab = np.random.default_rng(2), 1501
    likely = rng.permutation(12 - 2 * np.log(np.arange(1, vocab + 1)))
    flat, tied, masked = rng.normal(size=vocab) / 4, np.round(rng.normal(size=vocab) * 2), np.full(vocab, -np.inf)
    masked[[7, 1000, 1001, 1500]] = 1, 2, 2, 1.5
    gone, equal = np.full(vocab, -np.inf), np.where(rng.random(vocab) < 0.5, 3.0, -2.0)
    asked = [  # logits, temperature, top_k, top_p, min_p
        (likely, 1, 5, 1, 0), (likely, 1, 0, 0.9, 0), (likely, 0.7, 20, 0.9, 0), (likely, 1.5, 0, 1, 0.01),
        (likely, 1, 0, 0.8, 0.02), (likely, 1, 700, 1, 0), (likely, 1, 0, 0.999, 0), (likely, 1, 100, 0.9, 0.001),
        (flat, 1, 0, 0.9, 0), (flat, 1, 1400, 0.5, 0), (flat, 1, 0, 1, 1e-3), (flat, 1, 0, 1, 0),
        (tied, 1, 3, 1, 0), (tied, 1, 400, 0.5, 0), (tied, 1, 0, 0.6, 0), (tied, 0, 5, 0.5, 0),
        (masked, 1, 50, 1, 0), (masked, 1, 2, 0.5, 0), (masked, 0.5, 0, 0.9, 0), (gone, 1, 3, 0.9, 0.1),
        (equal, 1, 5, 1, 0), (equal, 1, 5, 0.7, 0),
    ]  # fmt: skip
    columns = [torch.tensor([a[i] for a in asked], dtype=torch.float32) for i in range(1, 5)]
    kinds = zip(("temperature", "top_k", "top_p", "min_p"), columns, strict=True)
    logits = torch.from_numpy(np.stack([a[0] for a in asked]).astype(np.float32))
    return logits, {k: v.to(torch.int32) if k == "top_k" else v for k, v in kinds}


def test_what_stays_of_a_row_and_what_is_drawn_is_that_of_the_definition(device: Device) -> None:
    """By tokens held and by searches of a whole row. A sum in another order may move a border by a token."""
    logits, asked = _rows_to_cut()
    t = replace(tiles("interpret").vocab, chunk=1024, block=1024, listed=64)
    temperature, cuts = asked["temperature"], [asked[k] for k in ("top_k", "top_p", "min_p")]
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
    got, want = truncation.truncate(t, scaled, *cuts), ops.truncate.reference(scaled, *cuts)
    moved = (got != want).sum(1)
    assert (moved <= (asked["top_p"] < 1)).all(), moved
    assert moved.sum() <= 2, moved
    position = torch.arange(len(logits), dtype=torch.int32)
    seeds = torch.stack([position * 7, -position], 1)
    tokens, most = truncation.draw(t, logits, temperature, *cuts, seeds, position)
    assert torch.equal(tokens, sampling.sample(t, got, temperature, seeds, position, random=True))
    assert torch.equal(most, scaled.amax(-1))


def test_a_row_that_is_broken_says_so_and_leaves_others_alone(device: Device) -> None:
    t, rows, nan = tiles("interpret").vocab, torch.randn(3, 300), float("nan")
    rows[0, 5], rows[2, 299] = nan, float("inf")
    half, seeds, position = torch.full((3,), 0.5), torch.zeros(3, 2, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    for temperature in (torch.zeros(3), torch.ones(3)):
        given = (temperature, torch.full((3,), 4, dtype=torch.int32), half, half)
        tokens, most = truncation.draw(t, rows, *given, seeds, position)
        assert torch.isnan(most[0])
        assert most[2] == float("inf")
        assert ((tokens >= 0) & (tokens < 300)).all()
        clean = truncation.draw(t, rows[1:2], *(a[1:2] for a in (*given, seeds, position)))
        assert (tokens[1], most[1]) == (clean[0][0], clean[1][0])


def _kernel(device: Device, op: str, **facts: Any) -> Kernel:
    """The first one for this op, or for these facts of it."""
    return next(k for k in device.kernels if k.op == op and (not facts or k.supports(facts) is None))


SPECS = {
    "wide-heads": AttnSpec(2, 1, 256, 1 / 16, "float32"),
    "80-of-128": AttnSpec(2, 2, 80, 80**-0.5, "float32"),
    "seven-share": AttnSpec(14, 2, 64, 0.125, "float32"),
    "half": AttnSpec(4, 2, 64, 0.125, "float16"),
    "window-softcap": AttnSpec(4, 2, 32, 0.2, "float32", "window", 50, softcap=3.0),
    "latent-80-and-20": AttnSpec(6, 1, 100, 0.1, "float32", "latent", latent=80, softcap=4.0, sinks=True),
    "latent-alone": AttnSpec(3, 1, 64, 0.125, "float16", "latent", latent=64),
    "latent-int8": AttnSpec(6, 1, 100, 0.1, "float32", "latent", latent=80, kv_dtype="int8"),
    "latent-e4m3": AttnSpec(6, 1, 100, 0.1, "float32", "latent", latent=80, kv_dtype="float8_e4m3fn"),
}


@pytest.mark.parametrize("which", [0, 1], ids=["variant", "exact"])
@pytest.mark.parametrize("name", SPECS)
def test_shapes_that_need_masks_equal_dense_attention(device: Device, name: str, which: int) -> None:
    """Spans of 512 keys: the longest sequence has two, so that parts are joined."""
    spec, rng = SPECS[name], np.random.default_rng(3)
    stories = [seq.story(rng, spec, n, q) for n, q in ((1, 1), (530, 1), (70, 33), (9, 2))]
    table, blocks = seq.tables(rng, stories, 16)
    cache = seq.Cache(device, device.attention[which], spec, 16, blocks)
    start = [s.length - s.query for s in stories]
    old = [i for i, n in enumerate(start) if n]
    done = [stories[i] for i in old]
    cache.attend(
        seq.batch_of(table[old], [0] * len(old), [start[i] for i in old]),
        *seq.rows(done, [0] * len(old), [start[i] for i in old]),
    )
    query = [s.query for s in stories]
    got = cache.attend(seq.batch_of(table, start, query), *seq.rows(stories, start, query))
    want = np.concatenate([seq.dense(s, spec, getattr(torch, spec.dtype)) for s in stories])
    assert np.abs(got - want).max() <= {"float32": 2e-5, "float16": 4e-3}[spec.dtype] * np.abs(want).max()


@pytest.mark.parametrize("which", [0, 1], ids=["variant", "exact"])
def test_latent_heads_that_do_not_fit_one_tile_take_several(device: Device, which: int) -> None:
    spec, rng = AttnSpec(520, 1, 24, 0.2, "float32", "latent", latent=16), np.random.default_rng(7)
    stories = [seq.story(rng, spec, n, q) for n, q in ((4, 4), (3, 1))]
    table, blocks = seq.tables(rng, stories, 16)
    cache = seq.Cache(device, device.attention[which], spec, 16, blocks)
    cache.attend(seq.batch_of(table[1:], [0], [2]), *seq.rows(stories[1:], [0], [2]))
    got = cache.attend(seq.batch_of(table, [0, 2], [4, 1]), *seq.rows(stories, [0, 2], [4, 1]))
    want = np.concatenate([seq.dense(s, spec, torch.float32) for s in stories])
    assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()


PROLOGUES = {
    "rope": QKPrologue(64), "norms of half": QKPrologue(32, eps=1e-3),
    "pairs side by side, norms with an offset": QKPrologue(64, True, 1e-6, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("kv_dtype", ["", "int8"])
@pytest.mark.parametrize("name", PROLOGUES)
def test_one_launch_before_attention_is_the_ops_one_by_one(device: Device, name: str, kv_dtype: str) -> None:
    """What it leaves in the cache too: a step that decodes reads it."""
    prologue, rng = PROLOGUES[name], np.random.default_rng(5)
    spec = AttnSpec(6, 2, 64, 0.125, "float32", kv_dtype=kv_dtype)
    cos_sin, weights = torch.randn(40, prologue.rotary_dim), (torch.randn(64), torch.randn(64))
    backend, table = device.attention[1], np.arange(1, 7, dtype=np.int32).reshape(2, 3)
    kv = [device.alloc_kv(backend.layout(spec, 16), 8) for _ in range(2)]
    for context, query in (([0, 0], [20, 3]), ([20, 3], [1, 1])):
        host = seq.batch_of(table, context, query)
        host.metadata = (backend.metadata(host, 0, spec, None),)
        batch = host.map(lambda a: torch.from_numpy(np.array(a)))
        q, k, v = (torch.from_numpy(rng.normal(size=(sum(query), h, 64)).astype(np.float32)) for h in (6, 2, 2))
        given = weights if prologue.eps is not None else None
        got, kv[0] = backend.attend_fused(q, k, v, kv[0], batch, 0, spec, prologue, cos_sin, given)
        if prologue.eps is not None:
            q, k = (ops.rms_norm(x, w, eps=prologue.eps, offset=prologue.offset) for x, w in zip((q, k), weights, strict=True))
        turned = {"rotary_dim": prologue.rotary_dim, "interleaved": prologue.interleaved}
        q, k = ops.rope(q, k, batch.positions, cos_sin, **turned)
        want, kv[1] = backend.attend(q, k, v, kv[1], batch, 0, spec)
        torch.testing.assert_close(got, want, rtol=0, atol=(2e-2 if kv_dtype else 2e-5) * want.abs().max().item())


@pytest.mark.parametrize("which", [0, 1], ids=["variant", "exact"])
def test_several_new_tokens_each_are_split_over_their_keys_too(device: Device, which: int) -> None:
    """A verifying step: the same number of new tokens for all, few enough to be one tile."""
    spec, rng = AttnSpec(4, 2, 32, 0.2, "float32"), np.random.default_rng(4)
    stories = [seq.story(rng, spec, n, 3) for n in (540, 3, 40)]
    table, blocks = seq.tables(rng, stories, 16)
    cache = seq.Cache(device, device.attention[which], spec, 16, blocks)
    start = [s.length - 3 for s in stories]
    before = [stories[0], stories[2]]
    cache.attend(seq.batch_of(table[[0, 2]], [0, 0], [start[0], start[2]]), *seq.rows(before, [0, 0], [start[0], start[2]]))
    batch = replace(seq.batch_of(table, start, [3] * 3), uniform=3)
    assert device.attention[which].metadata(batch, 0, spec, None) == {}
    got = cache.attend(batch, *seq.rows(stories, start, [3] * 3))
    want = np.concatenate([seq.dense(s, spec, torch.float32) for s in stories])
    assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()


@pytest.mark.parametrize("which", [0, 1], ids=["variant", "exact"])
@pytest.mark.parametrize("name", ["seven-share", "latent-80-and-20"])
def test_partial_results_that_would_take_too_much_memory_are_not_left(
    device: Device, name: str, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1200 keys are three spans. Without room for three, spans are longer; where that would change bits (exact), nothing is
    left, and the result has the same bits."""
    spec, rng, outs = SPECS[name], np.random.default_rng(8), []
    stories = [seq.story(rng, spec, n, 1) for n in (1200, 70)]
    table, blocks = seq.tables(rng, stories, 16)
    want = np.concatenate([seq.dense(s, spec, torch.float32) for s in stories])
    start, seen = [s.length - 1 for s in stories], []
    monkeypatch.setattr(paged, "attend", _Watched(paged.attend, seen))
    row = 2 * spec.heads * ((spec.latent or spec.head_dim) + 2) * 4
    for room in (3 * row, 2 * row, 1):
        monkeypatch.setattr(attention, "PARTS", room)
        cache = seq.Cache(device, device.attention[which], spec, 16, blocks)
        cache.attend(seq.batch_of(table, [0, 0], start), *seq.rows(stories, [0, 0], start))
        seen.clear()
        outs.append(cache.attend(replace(seq.batch_of(table, start, [1, 1]), uniform=1), *seq.rows(stories, start, [1, 1])))
        assert np.abs(outs[-1] - want).max() <= 2e-5 * np.abs(want).max()
        assert seen == [{3 * row: 3, 2 * row: 1 if which else 2, 1: 1}[room]]
        if which:
            np.testing.assert_array_equal(outs[-1], outs[0])


class _Watched:
    """A kernel whose launches say how many spans they have."""

    def __init__(self, kernel: Any, seen: list[int]) -> None:
        self._kernel, self._seen = kernel, seen

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        self._seen.append(grid[2])
        return self._kernel[grid]


@triton.jit
def _hold(x, out, NATIVE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, codes.to_e4m3(tl.load(x + i).to(tl.float32), NATIVE))


@triton.jit
def _read(x, out, NATIVE: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, codes.from_e4m3(tl.load(x + i), NATIVE))


@pytest.mark.parametrize("native", ["", "float8_e4m3fn", "float8_e4m3fnuz"])
def test_eight_bit_floats_are_held_and_read_as_torch_holds_and_reads_them(device: Device, native: str) -> None:
    """Every float16 that is in range, and NaN; what fnuz gives is half of what float8_e4m3fn gives, with one zero."""
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    x = torch.where(x.abs() <= 448, x, x.new_zeros(())).nan_to_num(0)
    x[0] = float("nan")
    held, read = torch.empty(1 << 16, dtype=torch.uint8), torch.empty(1 << 16)
    _hold[(1,)](x, held, native, 1 << 16)
    _read[(1,)](held, read, native, 1 << 16)
    want = x.to(torch.float32).to(torch.float8_e4m3fn)
    if native == "float8_e4m3fnuz":
        half = held.view(torch.float8_e4m3fnuz)
        torch.testing.assert_close(half.to(torch.float32) * 2, want.to(torch.float32), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(read, half.to(torch.float32), rtol=0, atol=0, equal_nan=True)
    else:
        assert torch.equal(held[1:], want.view(torch.uint8)[1:])
        torch.testing.assert_close(read, want.to(torch.float32), rtol=0, atol=0, equal_nan=True)


def test_noise_is_that_of_the_definition(device: Device) -> None:
    """One likely token per row but for noise: the kernel's largest score is the definition's, for 1,000 ids."""
    rng, vocab = np.random.default_rng(5), 1000
    seed = rng.integers(-(2**31), 2**31, (4, 2)).astype(np.int32)
    position = np.array([0, 1, 4095, 2**31 - 1], np.int32)
    want = noise.noise(seed, position, np.arange(vocab, dtype=np.int32))
    logits = torch.zeros(4, vocab)
    got = _kernel(device, "sample").run(logits, torch.ones(4), torch.from_numpy(seed), torch.from_numpy(position), random=True)
    np.testing.assert_array_equal(got.numpy(), want.argmax(1))


def test_noise_has_the_accuracy_of_float32_where_it_is_large_and_small(device: Device) -> None:
    """Every value in turn is the only one that can win, so the largest score shows its noise."""
    got = torch.empty(1 << 16)
    _show[(1,)](got, 123, 456, 789, BLOCK=1 << 16)
    seed, position = np.array([[123, 456]], np.int32), np.array([789], np.int32)
    want = noise.noise(seed, position, np.arange(1 << 16, dtype=np.int32))[0]
    np.testing.assert_allclose(got.numpy(), want, rtol=4e-7, atol=4e-7)
    assert want.max() > 9
    assert want.min() < -2


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(1, 1.0, 0.0), (0, 0.0, 0.0), (0, 1e-6, 0.0), (0, 0.999, 0.0), (7, 0.5, 0.02), (300, 1.0, 0.0), (0, 1.0, 1.0)],
)
@pytest.mark.parametrize("tied", [False, True])
def test_truncation_equals_the_sorted_definition(device: Device, tied: bool, top_k: int, top_p: float, min_p: float) -> None:
    """Over several blocks of a vocabulary, with masked tokens, a row of equals, and limits at their ends."""
    rng = np.random.default_rng(6)
    logits = (rng.normal(size=(3, 300)) * 3).astype(np.float32)
    logits = np.round(logits) if tied else logits
    logits[0, ::3], logits[1] = -np.inf, 1.5
    args = [
        torch.from_numpy(logits), torch.full((3,), top_k, dtype=torch.int32), torch.full((3,), top_p),
        torch.full((3,), min_p),
    ]  # fmt: skip
    got = _kernel(device, "truncate").run(*args)
    want = ops.truncate(*args)
    np.testing.assert_array_equal(torch.isfinite(got).numpy(), torch.isfinite(want).numpy())
    np.testing.assert_array_equal(got[torch.isfinite(got)].numpy(), want[torch.isfinite(want)].numpy())


def test_best_tokens_are_distinct_where_most_are_masked(device: Device) -> None:
    logits = torch.full((2, 300), float("-inf"))
    logits[0, [299, 7]], logits[1, 128] = torch.tensor([1.0, 2.0]), 0.0
    tokens = torch.tensor([7, 128], dtype=torch.int32)
    got = _kernel(device, "logprobs").run(logits, tokens, k=4, normalise=True)
    want = ops.logprobs(logits, tokens, k=4, normalise=True)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.numpy(), w.numpy(), atol=1e-6)


def test_rows_that_are_views_are_read_where_they_lie(device: Device) -> None:
    """q and k are parts of one projection: rows of a head, strides of the whole."""
    x = torch.randn(5, 6, 32)
    weight = torch.randn(32)
    got = _kernel(device, "rms_norm").run(x[:, 1:4], weight, eps=1e-6)
    torch.testing.assert_close(got, ops.rms_norm(x[:, 1:4], weight, eps=1e-6), rtol=1e-5, atol=1e-5)
    positions, table = torch.arange(5, dtype=torch.int32), torch.randn(5, 32)
    got_q, got_k = _kernel(device, "rope").run(x[:, :4], x[:, 4:], positions, table, rotary_dim=32)
    want_q, want_k = ops.rope(x[:, :4], x[:, 4:], positions, table, rotary_dim=32)
    torch.testing.assert_close(got_q, want_q)
    torch.testing.assert_close(got_k, want_k)


def test_the_logits_given_are_left_as_they_are(device: Device) -> None:
    """Log probabilities of the model's own logits may be asked for after they were processed."""
    for k in device.kernels:
        if k.op in ("penalties", "bad_words", "logit_bias", "token_mask", "truncate"):
            op = ops.all_ops()[k.op]
            args = [torch.from_numpy(np.array(a)) for a in op.samples[0].make(np.random.default_rng(0))]
            before = args[0].clone()
            k.run(*args, **op.samples[0].static)
            torch.testing.assert_close(args[0], before, rtol=0, atol=0)


def test_a_model_generates_what_the_reference_generates(device: Device, tmp_path: Path) -> None:
    """Greedy, float32, two layers of which one sees a window, prompts in chunks beside decodes: every op and both kinds of
    attention launch, with their plans, through the model's own step."""
    path = make_checkpoint("qwen3-windowed", tmp_path, tokenizer=False)
    want, got = (Rig(path, platform=p).generate(PROMPTS, 2, chunk=6, budget=8) for p in ("reference", PLATFORM))
    for w, g in zip(want, got, strict=True):
        assert g.tokens == w.tokens
        np.testing.assert_allclose(g.logprobs, w.logprobs, atol=2e-5)
        np.testing.assert_allclose(g.scores, w.scores, atol=2e-5)


def test_a_padded_step_gives_the_bits_of_the_step_itself(device: Device, tmp_path: Path) -> None:
    path, outs = make_checkpoint("llama", tmp_path, tokenizer=False), []
    for shape in (None, StepShape(64, 7, 16)):
        rig = Rig(path, platform=PLATFORM)
        batch = rig.batch([(Seq(i + 1, list(p), len(p)), len(p)) for i, p in enumerate(PROMPTS)], score=True)
        if shape:
            batch = batch.pad(shape)
            batch.metadata = rig.model.metadata(batch, shape)
        outs.append(rig.run(batch).result())
    plain, padded = outs
    assert padded.tokens[: len(PROMPTS)].tolist() == plain.tokens.tolist()
    scored = plain.score.values
    np.testing.assert_array_equal(padded.score.values[: len(scored)], scored)


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 2e-6), ("bfloat16", 1e-2)])
def test_adapters_of_many_ranks_and_parts_are_those_of_the_body_and_rows_keep_their_bits(
    device: Device, dtype: str, allowed: float
) -> None:
    """More ranks and parts than one launch has, and more rows than every program computes again."""
    kind, rng = getattr(torch, dtype), torch.Generator().manual_seed(1)
    slots, rank, width, rows = 3, 100, 40, (20, 7, 33, 16, 5, 40)
    ranks = torch.tensor([[0] * 6, [100, 1, 0, 64, 65, 7], [0, 0, 0, 0, 0, 99]], dtype=torch.int32)
    a = torch.randn(slots, 6 * rank, width, generator=rng).div(width**0.5).to(kind)
    b, slot = torch.randn(slots, rank, sum(rows), generator=rng).to(kind), torch.arange(70, dtype=torch.int32) % slots
    y, x = (torch.randn(70, n, generator=rng).to(kind) for n in (sum(rows), width))
    add, find = _kernel(device, "lora_add"), _kernel(device, "lora_rows")

    def run(index: torch.Tensor) -> torch.Tensor:
        found = find.run(slot, torch.arange(70, dtype=torch.int32), index.to(torch.int32), count=slots)
        return add.run(y[index], x[index], *found, a, b, ranks, rows=rows)

    whole = run(torch.arange(70))
    found = ops.lora_rows(slot, torch.arange(70, dtype=torch.int32), count=slots)
    want = ops.lora_add(y, x, *found, a, b, ranks, rows=rows)
    assert (whole.float() - want.float()).abs().max() <= allowed * want.float().abs().max()
    for index in (torch.tensor([1]), torch.tensor([68, 2, 1, 4]), torch.arange(69, -1, -1)):
        assert torch.equal(run(index), whole[index])
