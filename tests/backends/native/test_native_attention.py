"""Compiled attention against a dense computation in float64, at every instruction set: head sizes, shares, windows, chunks,
soft caps, sinks, block sizes, and what earlier owners left in the blocks; and the same bits in any company."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.backends.cpu import CpuPlatform
from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.cpu.native.attention import NativeAttention
from thalweg.errors import DeviceError
from thalweg.hal.attention import AttnSpec, QKPrologue
from thalweg.hal.platform import Place
from thalweg.hal.testing import sequences as seq
from thalweg.hal.testing import test_attention as kit

SPECS = {
    "64": AttnSpec(4, 4, 64, 0.125, "bfloat16"),
    "80-softcap": AttnSpec(6, 2, 80, 0.1, "bfloat16", softcap=5.0),
    "96-window": AttnSpec(4, 1, 96, 0.1, "bfloat16", "window", 21),
    "128": AttnSpec(16, 8, 128, 128**-0.5, "bfloat16"),
    "256-many-heads": AttnSpec(40, 1, 256, 1 / 16, "bfloat16"),
    "512-chunks": AttnSpec(8, 1, 512, 1 / 22, "bfloat16", "chunked", 30),
    "71-heads": AttnSpec(71, 1, 64, 0.125, "bfloat16"),
    "120-padded": AttnSpec(4, 2, 120, 0.1, "bfloat16", "window", 21),
    "56-padded-int8": AttnSpec(4, 2, 56, 0.1, "bfloat16", kv_dtype="int8"),
    "16-sinks": AttnSpec(4, 2, 16, 0.25, "bfloat16", sinks=True),
    "128-int8": AttnSpec(16, 8, 128, 128**-0.5, "bfloat16", kv_dtype="int8"),
    "latent": AttnSpec(12, 1, 576, 0.05, "bfloat16", "latent", latent=512),
    "latent-int8-sinks": AttnSpec(52, 1, 80, 0.1, "bfloat16", "latent", latent=48, softcap=5.0, kv_dtype="int8", sinks=True),
    "80-int8-window": AttnSpec(6, 2, 80, 0.1, "bfloat16", "window", 21, softcap=5.0, kv_dtype="int8"),
}
MIX = [(1, 1), (37, 1), (129, 1), (45, 20), (64, 64), (70, 2)]


@pytest.fixture(scope="module")
def device() -> Any:
    return CpuPlatform().open(Place())


QUICK = (("bfloat16", 6), ("bfloat16", 16), ("float32", 32))
"""(dtype, block size) that `make check` runs."""


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in itertools.product(["bfloat16", "float32"], [6, 16, 32])
    ],
)
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.sampled(8, 160)
def test_every_shape_equals_dense_attention(library: NativeLibrary, device: Any, name: str, dtype: str, size: int) -> None:
    spec = replace(SPECS[name], dtype=dtype)
    size = 12 if size == 6 and spec.kv_dtype else size  # neither is a whole tile
    stories, cache, table, start = kit._fill_cache(device, NativeAttention(library), spec, MIX, size, size)
    query = [s.query for s in stories]
    got = cache.attend(seq.batch_of(table, start, query), *seq.rows(stories, start, query))
    want = np.concatenate([seq.dense(s, spec, getattr(torch, dtype)) for s in stories])
    assert np.abs(got - want).max() <= kit.TOLERANCE[dtype] * np.abs(want).max()


def test_a_cache_in_int8_costs_no_more_than_its_own_rounding(library: NativeLibrary, device: Any) -> None:
    """Beside the exact result for the numbers that it holds: what an output in bfloat16 rounds away, 0.00166 at every level."""
    spec = SPECS["128-int8"]
    stories, cache, table, start = kit._fill_cache(device, NativeAttention(library), spec, MIX, 16, 5)
    query = [s.query for s in stories]
    got = cache.attend(seq.batch_of(table, start, query), *seq.rows(stories, start, query))
    want = np.concatenate([seq.dense(s, spec, torch.bfloat16) for s in stories])
    assert np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)) < 0.0017


@pytest.mark.parametrize("name", ["96-window", "128", "80-int8-window", "latent"])
@pytest.mark.sampled(2)
def test_a_token_has_the_same_bits_alone_and_in_any_chunking(library: NativeLibrary, device: Any, name: str) -> None:
    spec, length, size = SPECS[name], 150, 16
    rng = np.random.default_rng(3)
    stories = [seq.story(rng, spec, length, length), seq.story(rng, spec, 61, 61)]
    table, blocks = seq.tables(rng, stories, size)
    attention = NativeAttention(library)
    alone = seq.Cache(device, attention, spec, size, blocks)
    whole = alone.attend(seq.batch_of(table[:1], [0], [length]), *seq.rows(stories[:1], [0], [length]))
    for chunk in (1, 7, 40):
        cache, got = seq.Cache(device, attention, spec, size, blocks), []
        for at in range(0, length, chunk):
            now = [s for s in (0, 1) if at < stories[s].length]
            query = [min(chunk, stories[s].length - at) for s in now]
            batch = seq.batch_of(table[now], [at] * len(now), query)
            got.append(cache.attend(batch, *seq.rows([stories[s] for s in now], [at] * len(now), query))[: query[0]])
        np.testing.assert_array_equal(np.concatenate(got), whole)


@pytest.mark.parametrize("rotary", [0, 48])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", ["64", "80-softcap", "512-chunks", "128-int8", "80-int8-window"])
@pytest.mark.sampled(8)
def test_a_tile_is_written_as_its_tokens_are_one_by_one(
    library: NativeLibrary, device: Any, name: str, dtype: str, rotary: int
) -> None:  # fmt: skip
    """Sixteen tokens at once where a step has a whole tile. Of two sequences, so that tiles begin anywhere among the rows."""
    spec, lengths, size = replace(SPECS[name], dtype=dtype), (75, 64), 32
    rng = np.random.default_rng(4)
    stories = [seq.story(rng, spec, n, n) for n in lengths]
    table, blocks = seq.tables(rng, stories, size)
    fused = seq.build_fused(rng, spec, QKPrologue(rotary, eps=1e-6), max(lengths)) if rotary else None
    caches = []
    for chunk in (max(lengths), 1, 21):
        cache = seq.Cache(device, NativeAttention(library), spec, size, blocks)
        cache.box.value.zero_()
        for at in range(0, max(lengths), chunk):
            now = [s for s in (0, 1) if at < lengths[s]]
            query = [min(chunk, lengths[s] - at) for s in now]
            batch = seq.batch_of(table[now], [at] * len(now), query)
            cache.attend(batch, *seq.rows([stories[s] for s in now], [at] * len(now), query), fused=fused)
        caches.append(cache.box.value[1:])  # block 0 is scratch
    for other in caches[1:]:
        torch.testing.assert_close(other, caches[0], rtol=0, atol=0)


@pytest.mark.parametrize("kv_dtype", ["", "int8"])
def test_a_query_of_nan_gives_nan_and_disturbs_no_other_row(library: NativeLibrary, device: Any, kv_dtype: str) -> None:
    spec, size = replace(SPECS["64"], kv_dtype=kv_dtype), 16
    rng = np.random.default_rng(4)
    stories = [seq.story(rng, spec, 20, 20)]
    table, blocks = seq.tables(rng, stories, size)
    outs = []
    for bad in (False, True):
        q, k, v = seq.rows(stories, [0], [20])
        if bad:
            q[7, 1] = np.nan
        cache = seq.Cache(device, NativeAttention(library), spec, size, blocks)
        outs.append(cache.attend(seq.batch_of(table, [0], [20]), q, k, v))
    assert np.isnan(outs[1][7, 1]).all()
    outs[1][7, 1] = outs[0][7, 1]
    np.testing.assert_array_equal(outs[0], outs[1])


def test_what_it_does_not_run_is_refused_in_words(library: NativeLibrary) -> None:
    attention = NativeAttention(library)
    for change, why in (
        ({"head_dim": 40}, "multiples of 16"),
        ({"head_dim": 528}, "up to 512"),
        ({"heads": 97, "kv_heads": 1}, "at most 96"),
        ({"dtype": "float16"}, "not float16"),
        ({"kv_dtype": "float8_e4m3fn"}, "the cache holds bfloat16 or int8"),
        ({"kind": "encoder"}, "not encoder"),
        ({"kind": "latent", "latent": 64}, "one KV head"),
        ({"kind": "latent", "latent": 64, "kv_heads": 1, "head_dim": 656}, "up to 640"),
        ({"kind": "latent", "latent": 40, "kv_heads": 1}, "multiples of 16"),
    ):
        assert why in str(attention.supports(replace(SPECS["64"], **change)))
    for name, size, per in (
        ("64", 7, "a multiple of 2 for a cache in bfloat16"),
        ("128-int8", 6, "a multiple of 4 for a cache in int8"),
    ):
        with pytest.raises(DeviceError, match=per):
            attention.layout(SPECS[name], size)
