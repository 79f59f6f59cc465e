"""Ragged paged attention: prompts, chunks of prompts and decodes in one launch, over a cache in blocks.

Cache of a layer: [blocks, kv_heads, block_tokens, 2 head_dim], a token's key and value side by side. A row thus fills the 128
lanes of the vector unit even where head_dim is 64, and a block is one contiguous copy.

A cache of int8 has a few heads more, which hold the scales of codes. Each token has one row of bytes there. Byte 8 h
+ b is byte b of the float32 scale of head h's key, and byte 8 h + 4 + b of its value's. Scales thus come with the block and are
written as rows like all others. They occupy a ninth of the cache where eight heads share one such head.

Work comes in tiles: a few query tokens of one sequence. One grid step serves one tile. It walks over the keys its
tokens may see, a span of blocks at a time, and copies the next span while it computes on the present one. The softmax
runs online (Milakov & Gimelshein 2018, in tiles: Dao et al. 2022). The walk depends only on the tile, so a token's result does
not depend on the rest of the batch.

A walk reads its block numbers from scalar memory, which is small (1 MiB). The tables of a whole batch do not fit
where contexts are long (128 sequences of 131,072 tokens: 2 MiB). They therefore stay in the device's memory. The row of a
tile's sequence (of up to `tpu.LONGEST_TABLE` blocks) is copied while the tile before it is computed.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LOWEST = -1e30
"""Score of a masked key. Finite, so that a row without keys stays free of NaN."""
LANES = 128


def scale_heads(kv_heads: int, head_dim: int) -> int:
    """How many heads more a cache of int8 has."""
    return -(-8 * kv_heads // (2 * head_dim))


def encode(k: jax.Array, v: jax.Array, kind: str) -> jax.Array:
    """k, v [T, kv_heads, head_dim] -> [T, heads of the cache, 2 head_dim] of this type. 8-bit floats are clamped to
    the type's largest. int8 is rounded to nearest by the largest magnitude of each key and value over 127 (1 for
    zeros)."""
    both = jnp.stack([k, v], 2)  # [T, kv_heads, 2, head_dim]
    tokens, heads, _, dim = both.shape
    if kind == "int8":
        wide = both.astype(jnp.float32)
        scale = jnp.abs(wide).max(-1) / 127.0
        scale = jnp.where(scale > 0, scale, 1.0)
        codes = jnp.clip(jnp.round(wide / scale[..., None]), -127, 127).astype(jnp.int8).reshape(tokens, heads, 2 * dim)
        more = scale_heads(heads, dim)
        data = lax.bitcast_convert_type(scale, jnp.int8).reshape(tokens, 8 * heads)
        data = jnp.pad(data, ((0, 0), (0, more * 2 * dim - 8 * heads))).reshape(tokens, more, 2 * dim)
        return jnp.concatenate([codes, data], 1)
    if kind.startswith("float8"):
        top = float(jnp.finfo(kind).max)
        both = jnp.clip(both, -top, top)
    return both.astype(kind).reshape(tokens, heads, 2 * dim)


def attend(
    q: jax.Array, cache: jax.Array, tables: jax.Array, tile_seq: jax.Array, tile_position: jax.Array, tile_count: jax.Array,
    sinks: jax.Array | None = None, *, per: int, scale: float, window: int = 0, softcap: float = 0.0, span: int = 128,
    interpret: Any = False,
) -> jax.Array:  # fmt: skip
    """q [tiles, kv_heads, rows, head_dim]: row r is query head r % per (of this KV head) of token r // per of the
    tile. Gives an array like q. Rows of no token mean nothing.

    tables i32[S, B]. Per tile, i32: its sequence, the position of its first token, how many tokens it has (0:
    padding). sinks float32 [kv_heads, rows]: a logit that joins the denominator of each row. cache: of q's dtype or
    as `encode` makes it. span: keys walked at once, a multiple of block_tokens."""
    tiles, kv_heads, rows, dim = q.shape
    step = max(1, span // cache.shape[2])
    tables = jnp.pad(tables, ((0, 0), (0, -tables.shape[1] % math.lcm(step, LANES))))[:, None]
    body = functools.partial(_tile, per=per, scale=scale, window=window, softcap=softcap, sinking=sinks is not None)
    row = pl.BlockSpec((1, 1, tables.shape[2]), lambda n, seqs, *_: (seqs[n], 0, 0), memory_space=pltpu.SMEM)
    block = pl.BlockSpec((1, kv_heads, rows, dim), lambda n, *_: (n, 0, 0, 0))
    more, specs = [], []
    if sinks is not None:
        more = [jnp.broadcast_to(sinks[..., None], (kv_heads, rows, LANES))]
        specs = [pl.BlockSpec((kv_heads, rows, LANES), lambda n, *_: (0, 0, 0))]
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=(tiles,),
        in_specs=[row, block, *specs, pl.BlockSpec(memory_space=pl.ANY)],
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
    return call(tile_seq, tile_position, tile_count, tables, q, *more, cache)


def _tile(
    seqs: Any, positions: Any, counts: Any, table: Any, q: Any, *rest: Any, per: int, scale: float, window: int, softcap: float,
    sinking: bool,
) -> None:  # fmt: skip
    """One grid step. table [1, 1, B]: the blocks of the tile's sequence. held
    [2, step, heads, block_tokens, 2 head_dim]: the span computed on and the one on its way."""
    cache, out, held, acc, top, total, arrived = rest[sinking:]
    _, step, _, size, both = held.shape
    _, kv_heads, rows, dim = q.shape
    span = step * size
    n = pl.program_id(0)
    first, count = positions[n], counts[n]
    low = jnp.maximum(first - window + 1, 0) if window else jnp.int32(0)
    end = first + count
    begin, stop = lax.div(low, span), jnp.where(count > 0, lax.div(end + span - 1, span), 0)
    # A sink is a key seen by all, with a value of 0: the running sums begin with it.
    acc[...] = jnp.zeros_like(acc)
    top[...] = rest[0][...] if sinking else jnp.full_like(top, LOWEST)
    total[...] = jnp.ones_like(total) if sinking else jnp.zeros_like(total)

    def copies(i: Any, slot: Any) -> list[Any]:
        return [
            pltpu.make_async_copy(cache.at[table[0, 0, i * step + b]], held.at[slot, b], arrived.at[slot]) for b in range(step)
        ]

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
        scales = _scales(held.at[slot], kv_heads) if held.dtype == jnp.int8 else []
        for h in range(kv_heads):
            pairs = held[slot, :, h].reshape(span, both)
            if held.dtype != q.dtype:
                pairs = pairs.astype(jnp.float32)
            # Leftovers in these blocks, NaN included, must not reach a sum, not even times zero.
            pairs = jnp.where(own, pairs, jnp.zeros_like(pairs))
            keys, values = pairs[:, :dim], pairs[:, dim:]
            if scales:
                by = jnp.where(own[:, :1], scales[h // (both // 8)], 0.0)
                at_key = 8 * (h % (both // 8))
                keys, values = keys * by[:, at_key : at_key + 1], values * by[:, at_key + 4 : at_key + 5]
            keys, values = keys.astype(q.dtype), values.astype(q.dtype)
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


def _scales(held: Any, kv_heads: int) -> list[jax.Array]:
    """held [step, heads, block_tokens, 2 head_dim] of int8 -> of each head of scales, float32 [span, 2 head_dim].
    Column 8 h has the scale of head h's key, column 8 h + 4 that of its value, others anything."""
    found = []
    for head in range(kv_heads, held.shape[1]):
        data = held[:, head].reshape(-1, held.shape[3]).astype(jnp.int32) & 255
        word = data
        for b in range(1, 4):
            word = word | lax.shift_left(pltpu.roll(data, held.shape[3] - b, 1), jnp.full_like(data, 8 * b))
        found.append(lax.bitcast_convert_type(word, jnp.float32))
    return found


def _dot(a: jax.Array, b: jax.Array, contract: int) -> jax.Array:
    """a [M, K] with dimension `contract` of b, summed in float32. float32 operands are multiplied as such."""
    exact = lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(a, b, (((1,), (contract,)), ((), ())), precision=exact, preferred_element_type=jnp.float32)


def write(
    cache: jax.Array, new: jax.Array, block: jax.Array, low: jax.Array, high: jax.Array, *, interpret: Any = False
) -> jax.Array:  # fmt: skip
    """The cache with rows low..high - 1 of block[w] replaced by those of new[w], in place. new is
    [W, heads of the cache, block_tokens, 2 head_dim], the rest i32[W]. No block is named twice, except by entries
    with low = high."""
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
