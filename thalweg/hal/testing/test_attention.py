"""Attention over a paged cache against a dense computation, for batches that mix everything a scheduler mixes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.hal.attention import AttentionBackend, AttnSpec, QKPrologue, plans_on_device
from thalweg.hal.device import Device
from thalweg.hal.parts.spans import Spans
from thalweg.hal.step import StepShape
from thalweg.hal.testing import sequences as seq
from thalweg.hal.testing.cases import rng

SPECS = {
    "mha": AttnSpec(4, 4, 32, 32**-0.5, "float32"),
    "gqa": AttnSpec(8, 2, 64, 64**-0.5, "float32"),
    "mqa": AttnSpec(4, 1, 64, 0.3, "float32"),
    "window": AttnSpec(4, 2, 32, 32**-0.5, "float32", "window", 20),
    "chunked": AttnSpec(4, 2, 32, 32**-0.5, "float32", "chunked", 48),
    "softcap": AttnSpec(4, 2, 32, 32**-0.5, "float32", softcap=5.0),
    "sinks": AttnSpec(8, 2, 32, 32**-0.5, "float32", "window", 40, sinks=True),
    "e4m3": AttnSpec(4, 2, 64, 64**-0.5, "float32", kv_dtype="float8_e4m3fn"),
    "e5m2": AttnSpec(4, 2, 32, 32**-0.5, "float32", kv_dtype="float8_e5m2"),
    "int8": AttnSpec(4, 2, 32, 32**-0.5, "float32", sinks=True, kv_dtype="int8"),
    "latent": AttnSpec(4, 1, 48, 0.2, "float32", "latent", latent=32),
    "latent-window": AttnSpec(4, 1, 48, 0.2, "float32", "latent", 20, latent=32),
}
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 4e-3}
NEXT_CODE = {"float32": 1e-2, "bfloat16": 5e-2, "float16": 5e-2}
"""Tolerances where a key may round to the type the other way and get the next code, an eighth or a quarter away."""
PROLOGUES: Mapping[str, Callable[[int], QKPrologue]] = {
    "rope": QKPrologue,
    "norms-rope": lambda d: QKPrologue(d, eps=1e-6),
    "norms-half": lambda d: QKPrologue(d // 2, eps=1e-3),
    "norms-offset": lambda d: QKPrologue(d, eps=1e-6, offset=1.0),
    "interleaved": lambda d: QKPrologue(d, interleaved=True),
}
"""Prologues of heads of so many elements."""
LARGE = 256
"""Tokens of the large blocks, for backends that support no small ones only."""
MIX = [(1, 1), (37, 1), (300, 1), (45, 20), (64, 64), (130, 2), (16, 16), (700, 1), (560, 30)]
"""(length, new tokens): decodes of many lengths, a whole prefill, chunks that continue, a block exactly full."""


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest) -> AttnSpec:
    return SPECS[request.param]


def _ready(attention: AttentionBackend, spec: AttnSpec, dtype: str, size: int) -> AttnSpec:
    spec = replace(spec, dtype=dtype)
    why = attention.supports(spec) or attention.refuses_blocks(size)
    if why is not None:
        pytest.skip(f"{attention.name} refuses: {why}")
    return spec


def _size(attention: AttentionBackend) -> int:
    """Tokens per block: a usual number, or the smallest large one supported."""
    return next((n for n in (16, 64, 128, 256) if attention.refuses_blocks(n) is None), 1024)


def _fill_cache(device: Device, attention: Any, spec: AttnSpec, mix: list[tuple[int, int]], size: int, seed: int) -> Any:
    """Stories, their cache with everything but the new tokens already computed, its tables and its start positions."""
    result = rng("attention", seed)
    stories = [seq.story(result, spec, length, new) for length, new in mix]
    table, blocks = seq.tables(result, stories, size)
    cache = seq.Cache(device, attention, spec, size, blocks)
    seq.poison(cache, blocks, size, spec)
    start = [s.length - s.query for s in stories]
    old = [i for i, n in enumerate(start) if n]
    if old:
        done = [stories[i] for i in old]
        batch = seq.batch_of(table[old], [0] * len(old), [start[i] for i in old])
        cache.attend(batch, *seq.rows(done, [0] * len(old), [start[i] for i in old]))
    return stories, cache, table, start


@pytest.mark.parametrize("size", [8, 16, 32, LARGE])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mixed_batch_equals_dense_attention_whatever_the_blocks_held_before(
    device: Device, attention: Any, spec: AttnSpec, dtype: str, size: int
) -> None:
    if size == LARGE and attention.refuses_blocks(16) is None:
        pytest.skip("smaller blocks have shown it")
    spec = _ready(attention, spec, dtype, size)
    stories, cache, table, start = _fill_cache(device, attention, spec, MIX, size, size)
    query = [s.query for s in stories]
    got = cache.attend(seq.batch_of(table, start, query), *seq.rows(stories, start, query))
    want = np.concatenate([seq.dense(s, spec, getattr(torch, dtype)) for s in stories])
    assert got.shape == want.shape
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() <= TOLERANCE[dtype] * np.abs(want).max()


@pytest.mark.parametrize(("window", "heeds"), [(0, True), (40, True), (0, False)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tokens_may_see_some_of_those_behind_them(
    device: Device, attention: Any, dtype: str, window: int, heeds: bool
) -> None:  # fmt: skip
    """Only in layers that say so: a model may have others, with the same spans in their steps."""
    if not attention.spans:
        pytest.skip(f"{attention.name} lets no token see those behind it")
    size, full = _size(attention), AttnSpec(8, 2, 64, 64**-0.5, dtype, spans=heeds)
    spec = _ready(attention, replace(full, kind="window", window=window) if window else full, dtype, size)
    mix = [(37, 1), (130, 100), (700, 90), (64, 64), (20, 12)]
    stories, cache, table, start = _fill_cache(device, attention, spec, mix, size, 3)
    query = [s.query for s in stories]
    ahead = [np.zeros(n, np.int32) for n in query]
    for each, at in zip(ahead, start, strict=True):
        for first, end in ((5, 40), (45, 46), (50, 64), (len(each) - 3, len(each))):  # of a chunk's tokens
            if 0 < first < end <= len(each):
                each[first:end] = at + end - 1
    batch = replace(seq.batch_of(table, start, query), parts=(Spans(np.concatenate(ahead)[:, None]),))
    got = cache.attend(batch, *seq.rows(stories, start, query))
    want = np.concatenate(
        [seq.dense(s, spec, getattr(torch, dtype), a if heeds else None) for s, a in zip(stories, ahead, strict=True)]
    )
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() <= TOLERANCE[dtype] * np.abs(want).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_of_decodes_equals_dense_attention_padded_or_not(
    device: Device, attention: Any, spec: AttnSpec, dtype: str
) -> None:
    """Such a step says so (`uniform`), and may take another path than a mixed one."""
    _check_uniform(device, attention, spec, dtype, 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_that_verifies_drafts_equals_dense_attention_padded_or_not(
    device: Device, attention: Any, spec: AttnSpec, dtype: str
) -> None:
    """Its sequences have equally many tokens each, more than one, and it says so."""
    _check_uniform(device, attention, spec, dtype, 3)


def _check_uniform(device: Device, attention: Any, spec: AttnSpec, dtype: str, each: int) -> None:
    """each: tokens of a sequence."""
    size = _size(attention)
    spec = _ready(attention, spec, dtype, size)
    mix = [(length, each) for length in (3, 37, 300, 64, 16, 700)]
    for shape in (None, StepShape(8 * each, 8, 50, uniform=True)):
        stories, cache, table, start = _fill_cache(device, attention, spec, mix, size, 2)
        batch = replace(seq.batch_of(table, start, [each] * len(mix)), uniform=each)
        got = cache.attend(batch, *seq.rows(stories, start, [each] * len(mix)), shape=shape)
        want = np.concatenate([seq.dense(s, spec, getattr(torch, dtype)) for s in stories])
        assert np.isfinite(got).all()
        assert np.abs(got - want).max() <= TOLERANCE[dtype] * np.abs(want).max()


@pytest.mark.parametrize("each", [0, 3])
def test_a_step_planned_on_the_device_equals_dense_attention(device: Device, attention: Any, spec: AttnSpec, each: int) -> None:
    """As the passes of a drafter are. each: new tokens of every sequence, 0 where they differ."""
    if not plans_on_device(attention):
        pytest.skip(f"{attention.name} plans on the host only")
    size = _size(attention)
    spec = _ready(attention, spec, "float32", size)
    mix = [(length, each or new) for length, new in MIX if length >= each]
    for shape in (None, StepShape(11 * each or 160, 11, 50, uniform=each > 0)):
        stories, cache, table, start = _fill_cache(device, attention, spec, mix, size, 5)
        query = [s.query for s in stories]
        batch = replace(seq.batch_of(table, start, query), uniform=each)
        got = cache.attend(batch, *seq.rows(stories, start, query), shape=shape, planned=False)
        want = np.concatenate([seq.dense(s, spec, torch.float32) for s in stories])
        assert np.abs(got - want).max() <= TOLERANCE["float32"] * np.abs(want).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_padding_changes_no_row(device: Device, attention: Any, spec: AttnSpec, dtype: str) -> None:
    size = _size(attention)
    spec = _ready(attention, spec, dtype, size)
    outs = []
    for shape in (None, StepShape(tokens=160, seqs=11, blocks=50)):
        stories, cache, table, start = _fill_cache(device, attention, spec, MIX, size, 1)
        query = [s.query for s in stories]
        outs.append(cache.attend(seq.batch_of(table, start, query), *seq.rows(stories, start, query), shape=shape))
    if attention.batch_invariant:
        np.testing.assert_array_equal(outs[0], outs[1])
    else:
        assert np.abs(outs[0] - outs[1]).max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_layer_whose_last_rows_alone_are_read_gives_those_and_keeps_all(
    device: Device, attention: Any, spec: AttnSpec, dtype: str
) -> None:
    size = _size(attention)
    spec = _ready(attention, spec, dtype, size)
    mix = [(37, 1), (45, 20), (64, 64), (130, 2), (700, 30)]
    for shape in (None, StepShape(tokens=160, seqs=11, blocks=50)):
        stories, cache, table, start = _fill_cache(device, attention, spec, mix, size, 4)
        want = [seq.dense(s, spec, getattr(torch, dtype)) for s in stories]
        early = [s.query - 1 for s in stories if s.query > 1]  # all but the token that the last step computes
        some = [i for i, s in enumerate(stories) if s.query > 1]
        now = [stories[i] for i in some], [start[i] for i in some], early
        batch = replace(seq.batch_of(table[some], now[1], early), last_alone=True)
        got = cache.attend(batch, *seq.rows(*now), shape=shape)[np.cumsum(early) - 1]
        close = np.stack([want[i][-2] for i in some])
        assert np.abs(got - close).max() <= TOLERANCE[dtype] * np.abs(close).max()
        ends = [s.length - 1 for s in stories]
        got = cache.attend(seq.batch_of(table, ends, [1] * len(mix)), *seq.rows(stories, ends, [1] * len(mix)))
        assert np.abs(got - np.stack([w[-1] for w in want])).max() <= TOLERANCE[dtype] * np.abs(got).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_is_the_same_bits_alone_in_a_crowd_and_in_any_chunking(
    device: Device, attention: Any, spec: AttnSpec, dtype: str
) -> None:
    if not attention.batch_invariant:
        pytest.skip(f"{attention.name} does not claim it")
    size = _size(attention)
    spec = _ready(attention, spec, dtype, size)
    result, length = rng("chunks", dtype), 620
    mine, others = seq.story(result, spec, length, length), [seq.story(result, spec, n, n) for n in (1, 90, 290, 610)]
    stories = [mine, *others]
    table, blocks = seq.tables(result, stories, size)
    alone = seq.Cache(device, attention, spec, size, blocks)
    whole = alone.attend(seq.batch_of(table[:1], [0], [length]), *seq.rows([mine], [0], [length]))
    for chunks in ([64], [255], [1, 1, 3, 17, 1, 40]):
        cache, got, at = seq.Cache(device, attention, spec, size, blocks), [], 0
        for chunk in itertools.cycle(chunks):
            now = [i for i, s in enumerate(stories) if at < s.length]
            if 0 not in now:
                break
            start, query = [at] * len(now), [min(chunk, stories[i].length - at) for i in now]
            out = cache.attend(seq.batch_of(table[now], start, query), *seq.rows([stories[i] for i in now], start, query))
            got.append(out[: query[0]])
            at += chunk
        np.testing.assert_array_equal(np.concatenate(got), whole, err_msg=f"in chunks of {chunks}")


@pytest.mark.parametrize("which", PROLOGUES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_backend_that_turns_gives_what_the_ops_and_it_give(
    device: Device, attention: Any, spec: AttnSpec, dtype: str, which: str
) -> None:
    """Both ways of writing a cache and of reading it, mixed."""
    size = _size(attention)
    spec, prologue = _ready(attention, spec, dtype, size), PROLOGUES[which](spec.head_dim)
    if (why := attention.fuses(spec, prologue)) is not None:
        pytest.skip(f"{attention.name} refuses: {why}")
    result = rng("turned", which)
    fused = seq.build_fused(result, spec, prologue, max(length for length, _ in MIX))
    plain = [seq.story(result, spec, length, new) for length, new in MIX]
    turned = [fused.of(s) for s in plain]
    table, blocks = seq.tables(result, plain, size)
    want = np.concatenate([seq.dense(s, spec, getattr(torch, dtype)) for s in turned])
    query, start = [s.query for s in plain], [s.length - s.query for s in plain]
    old = [i for i, n in enumerate(start) if n]
    before = [start[i] for i in old]
    allowed = max(TOLERANCE[dtype], NEXT_CODE[dtype] if spec.kv_dtype else 0) * np.abs(want).max()
    for first, second in ((fused, fused), (fused, None), (None, fused)):
        cache = seq.Cache(device, attention, spec, size, blocks)
        stories = plain if first else turned
        cache.attend(
            seq.batch_of(table[old], [0] * len(old), before),
            *seq.rows([stories[i] for i in old], [0] * len(old), before), fused=first,
        )  # fmt: skip
        stories = plain if second else turned
        got = cache.attend(seq.batch_of(table, start, query), *seq.rows(stories, start, query), fused=second)
        assert np.abs(got - want).max() <= allowed
