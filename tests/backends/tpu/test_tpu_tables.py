"""Long block tables: scalar memory is 1 MiB, and the tables of 128 sequences of 131,072 tokens are 2 MiB."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from tpu_steps import LLAMA_1B, LLAMA_8B, decode_batch, step_of

from thalweg.backends.tpu import LONGEST_TABLE, TpuPlatform
from thalweg.backends.tpu.pallas import ragged_attention
from thalweg.backends.tpu.shipped import ShippedAttention
from thalweg.errors import ConfigError
from thalweg.hal.attention import AttnSpec
from thalweg.hal.platform import Defaults, Limits
from thalweg.hal.step import StepShape

SCALAR_MEMORY = 1 << 20
"""Bytes, of every generation libtpu compiles for."""


def kernels_of(jaxpr: Any) -> Iterator[Any]:
    for e in jaxpr.eqns:
        if e.primitive.name == "pallas_call":
            yield e
        for inner in jaxprs_in_params(e.params):
            yield from kernels_of(inner)


def scalar_bytes(call: Any) -> int:
    """What a Pallas kernel keeps in scalar memory: its prefetched operands whole, and two of each block that goes there."""
    grid = call.params["grid_mapping"]
    whole = sum(v.aval.size * v.aval.dtype.itemsize for v in call.invars[: grid.num_index_operands])
    blocks = [b.block_aval for b in grid.block_mappings if "smem" in str(b.block_aval)]
    return whole + sum(2 * math.prod(b.shape) * b.dtype.itemsize for b in blocks)


@pytest.mark.parametrize(
    ("config", "tokens"), [(LLAMA_1B, 128), pytest.param(LLAMA_8B, 2048, marks=pytest.mark.slow)], ids=["1b", "8b"]
)
@pytest.mark.slow
def test_a_step_of_default_flags_fits_scalar_memory(config: dict[str, Any], tokens: int) -> None:
    """Every kernel of a step of 128 sequences of 131,072 tokens."""
    seqs = 128 if tokens == 128 else 129
    shape = StepShape(tokens, seqs, 131072 // 32, uniform=tokens == seqs)
    step, shapes = step_of(config | {"num_hidden_layers": 1}, shape, max_len=131072)
    calls = list(kernels_of(jax.make_jaxpr(step)(*shapes).jaxpr))
    assert len(calls) == 3  # a cache write, an attention, a draw
    assert any("smem" in str(b.block_aval) for c in calls for b in c.params["grid_mapping"].block_mappings)
    assert max(map(scalar_bytes, calls)) < SCALAR_MEMORY // 2


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 11])
def test_long_tables_give_what_the_formula_says(window: int) -> None:
    """Tiles that jump between rows of a table of 129 x 4,096, at its ends and in its midst."""
    size, heads, per, dim = 8, 2, 2, 16
    tiles = [(128, 4_096 * 8 - 4, 4), (0, 8, 1), (1, 20_000, 3), (0, 0, 0), (77, 636, 4), (1, 15, 2)]
    rng = np.random.default_rng(window)
    table = np.zeros((129, 4096), np.int32)
    for s, first, count in tiles:
        table[s, (max(0, first - window + 1) if window else 0) // size : -(-(first + count) // size)] = 1  # what it may read
    table[table > 0] = 1 + rng.permutation(np.count_nonzero(table))
    cache = rng.normal(size=(1 + table.max(), heads, size, 2 * dim)).astype(np.float32)
    cache[0] = np.nan  # scratch
    q = rng.normal(size=(len(tiles), heads, 4 * per, dim)).astype(np.float32)
    columns = [jnp.asarray(c, jnp.int32) for c in zip(*tiles, strict=True)]
    run = partial(ragged_attention.attend, per=per, scale=0.3, window=window, span=128, interpret=True)
    got = np.asarray(jax.jit(run)(q, cache, table, *columns))
    for n, (seq, first, count) in enumerate(tiles):
        begin = max(0, first - window + 1) // size if window else 0
        told = (
            np.moveaxis(cache[table[seq, begin : -(-(first + count) // size)]], 1, 0)
            .reshape(heads, -1, 2 * dim)
            .astype(np.float64)
        )
        for row in range(count * per):
            at = first + row // per - begin * size
            low = max(0, at - window + 1) if window else 0
            for h in range(heads):
                scores = told[h, low : at + 1, :dim] @ q[n, h, row].astype(np.float64) * 0.3
                weights = np.exp(scores - scores.max())
                want = weights / weights.sum() @ told[h, low : at + 1, dim:]
                np.testing.assert_allclose(got[n, h, row], want, atol=5e-5)


def test_more_blocks_than_scalar_memory_holds_are_refused_with_the_remedy() -> None:
    platform, most = TpuPlatform(), 32 * LONGEST_TABLE
    assert platform.buckets(Defaults(), Limits(2048, 128, most, 32))
    with pytest.raises(ConfigError, match=r"block_size: 2097153 tokens in blocks of 32 .* --block-size 64, or a shorter"):
        platform.buckets(Defaults(), Limits(2048, 128, most + 1, 32))
    assert platform.buckets(Defaults(), Limits(2048, 128, most + 1, 64))


def test_the_kernel_that_wants_every_table_at_once_refuses_what_does_not_fit() -> None:
    shipped, spec = ShippedAttention(interpret=False), AttnSpec(32, 8, 128, 0.1, "bfloat16")
    for blocks, fits in ((1536, True), (4096, False)):
        shape = StepShape(128, 128, blocks, uniform=True)
        batch = decode_batch(shape, 1)
        if fits:
            assert shipped.metadata(batch, 0, spec, shape)["count"] == 128
            continue
        with pytest.raises(ConfigError, match=r"additional_config: attention jax .*128 of 4096 blocks are 2097152 bytes"):
            shipped.metadata(batch, 0, spec, shape)
