"""Attention on JAX arrays. Work is cut into tiles on the host. A tile is a few query tokens of one sequence, which share the
walk over their keys. Two implementations run the same tiles: the Pallas kernel, and one that XLA compiles by itself, for specs
that the kernel refuses.

The cache of a layer is [blocks, kv_heads, block_tokens, 2 head_dim] for both: a token's key, then its value. One of int8 has
more heads for scales (`pallas.ragged_attention`). That of latents, which only XLA's supports, has one head and only keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.backends.tpu.interop import in_jax
from thalweg.backends.tpu.pallas import ragged_attention
from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.kv import KVLayout
from thalweg.hal.ops.quantise import KV_DTYPES
from thalweg.hal.step import SCRATCH, StepBatch, StepShape

SPAN = 128
"""Keys walked at once, at least: a whole number of blocks."""
ROWS = 16
"""Rows (tokens x query heads per KV head) of a tile are a multiple of this: the vector unit's count of 2-byte values."""
QUERIES = 16
"""Query tokens of a tile, in steps with more than decodes."""


def backends(choice: str, interpret: bool) -> tuple[AttentionBackend, ...]:
    """In order of preference. interpret: there is no hardware for Pallas kernels. `auto` then prefers the code that XLA
    compiles, which is much faster on a host."""
    from thalweg.backends.tpu.shipped import ShippedAttention

    kernel, shipped, plain = PallasAttention(interpret), ShippedAttention(interpret), XlaAttention()
    if choice == "auto":
        return (plain, kernel) if interpret else (kernel, shipped, plain)
    return ({"pallas": kernel, "jax": shipped, "xla": plain}[choice],)


@dataclass(frozen=True, slots=True)
class _TokenSlots:
    """Per token, where its key and value go: `block` and `offset` in it (scratch if not `real`). seq: its row of the
    batch. last_row: of each sequence."""

    block: jax.Array
    offset: jax.Array
    real: jax.Array
    seq: jax.Array
    last_row: jax.Array


class _TiledAttention(AttentionBackend):
    kinds: tuple[str, ...] = ("full", "window")

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind not in self.kinds:
            return f"runs kinds {', '.join(self.kinds)}, not {spec.kind}"
        if spec.dtype not in ("float32", "bfloat16"):
            return f"runs float32 and bfloat16, not {spec.dtype}"
        if spec.kv_dtype not in ("", spec.dtype, *KV_DTYPES):
            return f"the cache holds {spec.dtype}, {', '.join(KV_DTYPES)}, not {spec.kv_dtype}"
        if spec.heads % spec.kv_heads:
            return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
        if spec.kv_dtype == "int8" and spec.head_dim % 4:
            return f"a cache of int8 needs a head_dim that is a multiple of 4, not {spec.head_dim}"
        return None

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        dtype = spec.kv_dtype or spec.dtype
        if spec.kind == "latent":
            shape = (1, block_tokens, spec.head_dim)
            return KVLayout(shape, dtype, f"latent/{dtype}/{'x'.join(map(str, shape))}")
        more = ragged_attention.scale_heads(spec.kv_heads, spec.head_dim) if dtype == "int8" else 0
        shape = (spec.kv_heads + more, block_tokens, 2 * spec.head_dim)
        return KVLayout(shape, dtype, f"head-token-kv/{dtype}/{'x'.join(map(str, shape))}")

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        """i32 arrays. Per tile: `tile_seq`, `tile_row` (of its first token), `tile_count`. Per token: `place` (tile x
        query tokens per tile + which). The length of `place_size` is the number of query tokens per tile."""
        tokens, seqs = batch.tokens.shape[0], batch.slots.shape[0]
        queries = 1 if tokens == seqs and (batch.query == 1).all() else QUERIES
        most = seqs if queries == 1 else tokens // queries + seqs
        query = np.where(batch.slots == SCRATCH, 0, batch.query)
        each = -(-query // queries)
        owner = np.repeat(np.arange(seqs), each)
        nth = np.arange(owner.size) - np.repeat(np.cumsum(each) - each, each)
        start = batch.last_row + 1 - batch.query
        tile = np.zeros((3, most), np.int32)
        tile[:, : owner.size] = owner, start[owner] + nth * queries, np.minimum(queries, query[owner] - nth * queries)
        inside = np.arange(tokens) - start[batch.token_seq]
        place = (np.cumsum(each) - each)[batch.token_seq] * queries + inside
        place[batch.slots[batch.token_seq] == SCRATCH] = 0
        return {
            "tile_seq": tile[0], "tile_row": tile[1], "tile_count": tile[2], "place": place.astype(np.int32),
            "place_size": np.zeros(queries, np.int32),
        }  # fmt: skip

    def plan_on_device(self, batch: StepBatch, group: int, spec: AttnSpec) -> dict[str, Any]:
        run = in_jax(partial(_plan_tiles, queries=1 if batch.uniform == 1 else QUERIES))
        result: dict[str, Any] = run(batch.token_seq, batch.query, batch.last_row, batch.slots)
        return result

    def attend(
        self, q: Any, k: Any, v: Any, kv: Any, batch: StepBatch, group: int, spec: AttnSpec, sinks: Any | None = None
    ) -> tuple[Any, Any]:
        run = in_jax(partial(_attend, spec=spec, store=self._store, walk=self._walk))
        rows = (batch.token_seq, batch.positions, batch.slots, batch.last_row)
        out, kv = run(q, k, v, kv, batch.block_tables[group], *rows, dict(batch.metadata[group]), sinks)
        return out, kv

    def _store(self, kv: jax.Array, new: jax.Array, at: _TokenSlots) -> jax.Array:
        """The cache with `new` [T, heads of the cache, 2 head_dim] in it."""
        raise NotImplementedError

    def _walk(
        self, q: jax.Array, kv: jax.Array, table: jax.Array, seq: jax.Array, first: jax.Array, count: jax.Array,
        sinks: jax.Array | None, spec: AttnSpec,
    ) -> jax.Array:  # fmt: skip
        """The result of `ragged_attention.attend` for tiles."""
        raise NotImplementedError


def _plan_tiles(
    seq: jax.Array, query: jax.Array, last_row: jax.Array, slots: jax.Array, *, queries: int
) -> dict[str, jax.Array]:
    """The arrays of `_TiledAttention.metadata`. queries: tokens of a tile."""
    tokens, seqs = seq.shape[0], query.shape[0]
    tile = jnp.arange(seqs if queries == 1 else tokens // queries + seqs)
    count = jnp.where(slots == SCRATCH, 0, query)
    each = -(-count // queries)
    ends, start = jnp.cumsum(each), last_row + 1 - query
    first = ends - each
    owner = jnp.minimum((ends[None] <= tile[:, None]).sum(1), seqs - 1)
    done, used = (tile - first[owner]) * queries, tile < ends[-1]
    place = first[seq] * queries + jnp.arange(tokens) - start[seq]
    found = {
        "tile_seq": jnp.where(used, owner, 0), "tile_row": jnp.where(used, start[owner] + done, 0),
        "tile_count": jnp.where(used, jnp.minimum(queries, count[owner] - done), 0),
        "place": jnp.where(slots[seq] == SCRATCH, 0, place), "place_size": jnp.zeros(queries),
    }  # fmt: skip
    return {name: values.astype(jnp.int32) for name, values in found.items()}


def _attend(
    q: jax.Array, k: jax.Array, v: jax.Array, kv: jax.Array, table: jax.Array, seq: jax.Array, position: jax.Array,
    slots: jax.Array, last_row: jax.Array, plan: Mapping[str, jax.Array], sinks: jax.Array | None, *, spec: AttnSpec,
    store: Any, walk: Any,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Store, gather the tiles' queries, walk, and put every token's result back in its row."""
    tokens, size, per = q.shape[0], kv.shape[2], spec.heads // spec.kv_heads
    block, offset, real = slot_mapping(table, seq, position, slots, size)
    latent = spec.kind == "latent"
    new = ragged_attention.encode(k, k if latent else v, spec.kv_dtype or spec.dtype)
    new = new[..., : spec.head_dim] if latent else new
    kv = store(kv, new, _TokenSlots(block, offset, real, seq, last_row))

    queries = plan["place_size"].shape[0]
    row = jnp.minimum(plan["tile_row"][:, None] + jnp.arange(queries), tokens - 1)
    tiles = q[row].reshape(-1, queries, spec.kv_heads, per, spec.head_dim)
    tiles = jnp.moveaxis(tiles, 1, 2).reshape(-1, spec.kv_heads, queries * per, spec.head_dim)
    tiles = jnp.pad(tiles, ((0, 0), (0, 0), (0, -queries * per % ROWS), (0, 0)))
    if sinks is not None:
        sinks = jnp.tile(sinks.astype(jnp.float32).reshape(spec.kv_heads, per), (1, queries))
        sinks = jnp.pad(sinks, ((0, 0), (0, -queries * per % ROWS)))
    out = walk(tiles, kv, table, plan["tile_seq"], position[plan["tile_row"]], plan["tile_count"], sinks, spec)
    out = out[:, :, : queries * per].reshape(-1, spec.kv_heads, queries, per, out.shape[-1])
    out = jnp.moveaxis(out, 2, 1).reshape(-1, spec.heads, out.shape[-1])[plan["place"]]
    return jnp.where(real[:, None, None], out, 0), kv


def slot_mapping(
    table: jax.Array, seq: jax.Array, position: jax.Array, slots: jax.Array, size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Per token: its block of `size` tokens (scratch for padding), its offset in it, and whether it is no padding."""
    real = slots[seq] != SCRATCH
    column = jnp.minimum(position // size, table.shape[1] - 1)
    return jnp.where(real, table[seq, column], SCRATCH), position % size, real


class PallasAttention(_TiledAttention):
    """The kernels of `pallas.ragged_attention`."""

    name = "pallas-ragged"

    def __init__(self, interpret: bool) -> None:
        self._interpret = interpret

    def supports(self, spec: AttnSpec) -> str | None:
        why = super().supports(spec)
        if why is None and not self._interpret and spec.head_dim % 64:
            why = f"head_dim {spec.head_dim} is not a multiple of 64"
        return why

    def _store(self, kv: jax.Array, new: jax.Array, at: _TokenSlots) -> jax.Array:
        """Whole blocks are read, merged with their new tokens and written, each block once."""
        tokens, size = new.shape[0], kv.shape[2]
        first = at.real & ((at.offset == 0) | (at.seq != jnp.roll(at.seq, 1)) | (jnp.arange(tokens) == 0))
        most = min(tokens, tokens // size + 2 * at.last_row.shape[0])
        start = jnp.nonzero(first, size=most, fill_value=tokens)[0].astype(jnp.int32)
        some, start = start < tokens, jnp.minimum(start, tokens - 1)
        low = jnp.where(some, at.offset[start], 0)
        high = jnp.where(some, jnp.minimum(size, low + at.last_row[at.seq[start]] + 1 - start), 0)
        row = jnp.clip((start - low)[:, None] + jnp.arange(size), 0, tokens - 1)
        new = jnp.swapaxes(new[row], 1, 2)  # [W, heads of the cache, block_tokens, 2 head_dim]
        block = jnp.where(some, at.block[start], SCRATCH)
        return ragged_attention.write(kv, new, block, low, high, interpret=self._interpret)

    def _walk(
        self, q: jax.Array, kv: jax.Array, table: jax.Array, seq: jax.Array, first: jax.Array, count: jax.Array,
        sinks: jax.Array | None, spec: AttnSpec,
    ) -> jax.Array:  # fmt: skip
        return ragged_attention.attend(
            q, kv, table, seq, first, count, sinks, per=spec.heads // spec.kv_heads, scale=spec.scale, window=spec.window,
            softcap=spec.softcap, span=SPAN, interpret=self._interpret,
        )  # fmt: skip


class XlaAttention(_TiledAttention):
    """A walk written in JAX. A walk ends where the batch's longest does. Masked keys add exactly nothing."""

    name = "xla"
    kinds = ("full", "window", "chunked", "latent")

    def supports(self, spec: AttnSpec) -> str | None:
        why = super().supports(spec)
        if why is None and spec.kind == "latent" and (spec.kv_heads != 1 or not 0 < spec.latent <= spec.head_dim):
            why = f"latent attention has one KV head and values in its keys, not {spec.kv_heads} and {spec.latent} elements"
        if why is None and spec.kind == "latent" and spec.kv_dtype == "int8":
            why = "caches of latents hold numbers without scales, not int8"
        return why

    def _store(self, kv: jax.Array, new: jax.Array, at: _TokenSlots) -> jax.Array:
        return kv.at[at.block, :, at.offset].set(new)

    def _walk(
        self, q: jax.Array, kv: jax.Array, table: jax.Array, seq: jax.Array, first: jax.Array, count: jax.Array,
        sinks: jax.Array | None, spec: AttnSpec,
    ) -> jax.Array:  # fmt: skip
        tiles, heads, rows, dim = q.shape
        size, per = kv.shape[2], spec.heads // spec.kv_heads
        values = slice(spec.latent) if spec.kind == "latent" else slice(dim, None)
        step = max(1, SPAN // size)
        span = step * size
        table = jnp.pad(table, ((0, 0), (0, -table.shape[1] % step)), constant_values=SCRATCH)[seq]
        mine = (first[:, None] + jnp.arange(rows) // per)[:, :, None]
        end = first + count
        low = jnp.maximum(_first(first, spec), 0) if spec.window else jnp.zeros_like(first)
        query = q.astype(jnp.float32) * spec.scale

        def one(i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            top, total, acc = carry
            held = kv[jax.lax.dynamic_slice_in_dim(table, i * step, step, 1)]  # [tiles, step, heads, size, 2 dim], or dim
            at = i * span + jnp.arange(span)
            # Leftovers in these blocks, NaN included, must not reach a sum, not even times zero.
            own = (at >= low[:, None]) & (at < end[:, None])
            held = _decode_kv(jnp.moveaxis(held, 1, 2).reshape(tiles, -1, span, kv.shape[3]), heads, q.dtype)
            held = jnp.where(own[:, None, :, None], held, 0)
            scores = jnp.einsum("nhrd,nhkd->nhrk", query, held[..., :dim])
            if spec.softcap:
                scores = spec.softcap * jnp.tanh(scores / spec.softcap)
            seen = (at <= mine) & (at >= _first(mine, spec)) if spec.window else at <= mine
            scores = jnp.where(seen[:, None] & own[:, None, None, :], scores, -jnp.inf)
            highest = jnp.maximum(top, scores.max(-1))
            keep, weights = jnp.exp(top - highest), jnp.exp(scores - highest[..., None])
            acc = acc * keep[..., None] + jnp.einsum("nhrk,nhkd->nhrd", weights, held[..., values])
            return highest, total * keep + weights.sum(-1), acc

        shape = (tiles, heads, rows)
        carry = (jnp.full(shape, jnp.finfo(jnp.float32).min), jnp.zeros(shape), jnp.zeros((*shape, spec.latent or dim)))
        if sinks is not None:  # a key seen by all, with a value of 0
            carry = (jnp.broadcast_to(sinks, shape), jnp.ones(shape), carry[2])
        begin = jnp.where(count > 0, low, jnp.iinfo(jnp.int32).max).min() // span
        _, total, acc = jax.lax.fori_loop(begin, (end * (count > 0)).max() // span + 1, one, carry)
        return (acc / jnp.where(total > 0, total, 1)[..., None]).astype(q.dtype)


def _first(position: jax.Array, spec: AttnSpec) -> jax.Array:
    """Of the positions that a token at this one sees, where it has a window or a chunk."""
    return position // spec.window * spec.window if spec.kind == "chunked" else position - spec.window + 1


def _decode_kv(held: jax.Array, heads: int, dtype: Any) -> jax.Array:
    """held [tiles, heads of the cache, span, 2 head_dim] -> [tiles, heads, span, 2 head_dim], float32 rounded to dtype."""
    tiles, _, span, both = held.shape
    pairs = held[:, :heads].astype(jnp.float32)
    if held.dtype == jnp.int8:
        data = jnp.moveaxis(held[:, heads:], 1, 2).reshape(tiles, span, -1)[..., : 8 * heads]
        scales = jax.lax.bitcast_convert_type(data.reshape(tiles, span, heads, 2, 4), jnp.float32)
        pairs = pairs * jnp.repeat(jnp.swapaxes(scales, 1, 2), both // 2, -1)
    return pairs.astype(dtype).astype(jnp.float32)
