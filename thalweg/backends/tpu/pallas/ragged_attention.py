"""Ragged paged attention: prompts, chunks of prompts and decodes in one launch, over a cache in blocks.

Cache of a layer: [blocks, kv_heads, block_tokens, 2 head_dim], a token's key and value side by side: then a row fills the 128
lanes of the vector unit even where head_dim is 64, and a block is one contiguous copy.

Work comes in tiles: a few query tokens of one sequence. One grid step serves one tile: it walks over the keys its tokens
may see, a span of blocks at a time, copying the next span while it computes on the present one, with a running softmax
(Milakov & Gimelshein 2018; in tiles: Dao et al. 2022). The walk depends on the tile alone, so a token's result does not
depend on what else is in the batch.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LOWEST = -1e30
"""Score of a key that is not seen; finite, so that a row that sees nothing stays free of NaN."""
LANES = 128


def attend(
    q: jax.Array, cache: jax.Array, tables: jax.Array, tile_seq: jax.Array, tile_position: jax.Array, tile_count: jax.Array,
    *, per: int, scale: float, window: int = 0, softcap: float = 0.0, span: int = 128, interpret: Any = False,
) -> jax.Array:  # fmt: skip
    """q [tiles, kv_heads, rows, head_dim]: row r is query head r % per (of this KV head) of token r // per of the tile.
    tables i32[S, B]; per tile, i32: its sequence, the position of its first token, how many tokens it has (0: padding).
    span: keys walked at once, a multiple of block_tokens. Gives an array like q; rows of no token mean nothing."""
    tiles, kv_heads, rows, dim = q.shape
    step = max(1, span // cache.shape[2])
    tables = jnp.pad(tables, ((0, 0), (0, -tables.shape[1] % step)))
    body = functools.partial(_tile, width=tables.shape[1], per=per, scale=scale, window=window, softcap=softcap)
    block = pl.BlockSpec((1, kv_heads, rows, dim), lambda n, *_: (n, 0, 0, 0))
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=4,
        grid=(tiles,),
        in_specs=[block, pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=block,
        scratch_shapes=[
            pltpu.VMEM((2, step, *cache.shape[1:]), cache.dtype),
            pltpu.VMEM((kv_heads, rows, dim), jnp.float32),
            pltpu.VMEM((kv_heads, rows, LANES), jnp.float32),
            pltpu.VMEM((kv_heads, rows, LANES), jnp.float32),
            pltpu.SemaphoreType.DMA((2,)),
        ],
    )
    call = pl.pallas_call(body, grid_spec=grid, out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype), interpret=interpret)
    return call(tables.reshape(-1), tile_seq, tile_position, tile_count, q, cache)


def _tile(
    tables: Any, seqs: Any, positions: Any, counts: Any, q: Any, cache: Any, out: Any, held: Any, acc: Any, top: Any,
    total: Any, arrived: Any, *, width: int, per: int, scale: float, window: int, softcap: float,
) -> None:  # fmt: skip
    """One grid step. held [2, step, kv_heads, block_tokens, 2 head_dim]: the span computed on and the one on its way."""
    _, step, kv_heads, size, both = held.shape
    dim = q.shape[3]
    rows, span = q.shape[2], step * size
    n = pl.program_id(0)
    first, count = positions[n], counts[n]
    low = jnp.maximum(first - window + 1, 0) if window else jnp.int32(0)
    end = first + count
    begin, stop = lax.div(low, span), jnp.where(count > 0, lax.div(end + span - 1, span), 0)
    acc[...], total[...] = jnp.zeros_like(acc), jnp.zeros_like(total)
    top[...] = jnp.full_like(top, LOWEST)

    def copies(i: Any, slot: Any) -> list[Any]:
        at = seqs[n] * width + i * step
        return [
            pltpu.make_async_copy(cache.at[tables[at + b]], held.at[slot, b], arrived.at[slot]) for b in range(step)
        ]  # fmt: skip

    @pl.when(begin < stop)
    def first_span() -> None:
        for c in copies(begin, 0):
            c.start()

    def one(i: Any, carry: None) -> None:
        slot = lax.rem(i - begin, 2)

        @pl.when(i + 1 < stop)
        def next_span() -> None:
            for c in copies(i + 1, 1 - slot):
                c.start()

        for c in copies(i, slot):
            c.wait()
        at = i * span + lax.broadcasted_iota(jnp.int32, (rows, span), 1)
        mine = first + lax.div(lax.broadcasted_iota(jnp.int32, (rows, span), 0), per)
        seen = at <= mine
        column = i * span + lax.broadcasted_iota(jnp.int32, (span, both), 0)
        own = column < end
        if window:
            seen, own = seen & (at > mine - window), own & (column >= low)
        for h in range(kv_heads):
            pairs = held[slot, :, h].reshape(span, both)
            # What others left in these blocks, NaN included, must not reach a sum, not even times zero.
            pairs = jnp.where(own, pairs, jnp.zeros_like(pairs))
            keys, values = pairs[:, :dim], pairs[:, dim:]
            scores = _dot(q[0, h], keys, 1) * scale
            if softcap:
                scores = softcap * jnp.tanh(scores / softcap)
            scores = jnp.where(seen, scores, LOWEST)
            before = top[h][:, :1]
            highest = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
            weights = jnp.where(seen, jnp.exp(scores - highest), 0.0)
            keep = jnp.exp(before - highest)
            total[h] = total[h] * keep + jnp.sum(weights, axis=1, keepdims=True)
            acc[h] = acc[h] * keep + _dot(weights.astype(values.dtype), values, 0)
            top[h] = jnp.broadcast_to(highest, top[h].shape)

    lax.fori_loop(begin, stop, one, None)
    for h in range(kv_heads):
        whole = total[h][:, :1]
        out[0, h] = (acc[h] / jnp.where(whole > 0, whole, 1.0)).astype(out.dtype)


def _dot(a: jax.Array, b: jax.Array, contract: int) -> jax.Array:
    """a [M, K] with dimension `contract` of b, summed in float32. float32 operands are multiplied as such."""
    exact = lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(a, b, (((1,), (contract,)), ((), ())), precision=exact, preferred_element_type=jnp.float32)


def write(
    cache: jax.Array, new: jax.Array, block: jax.Array, low: jax.Array, high: jax.Array, *, interpret: Any = False
) -> jax.Array:  # fmt: skip
    """The cache with rows low..high - 1 of block[w] replaced by those of new[w], in place: new is [W, kv_heads,
    block_tokens, 2 head_dim], the rest i32[W]. No block is named twice, except by entries with low = high."""
    shape = (1, *cache.shape[1:])
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=(new.shape[0],),
        in_specs=[
            pl.BlockSpec(shape, lambda w, block, *_: (block[w], 0, 0, 0)),
            pl.BlockSpec(shape, lambda w, *_: (w, 0, 0, 0)),
        ],
        out_specs=pl.BlockSpec(shape, lambda w, block, *_: (block[w], 0, 0, 0)),
    )
    same = jax.ShapeDtypeStruct(cache.shape, cache.dtype)
    call = pl.pallas_call(_merge, grid_spec=grid, out_shape=same, input_output_aliases={3: 0}, interpret=interpret)
    return call(block, low, high, cache, new)


def _merge(block: Any, low: Any, high: Any, old: Any, new: Any, out: Any) -> None:
    w = pl.program_id(0)
    row = lax.broadcasted_iota(jnp.int32, old.shape, 2)
    out[...] = jnp.where((row >= low[w]) & (row < high[w]), new[...], old[...])
