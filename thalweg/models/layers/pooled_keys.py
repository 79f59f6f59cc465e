"""Attention that reads the best blocks of keys, selected by their means (Qwen 4): see `spec.pooled_keys`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.errors import ConfigError
from thalweg.hal import ops
from thalweg.hal.ops.indexer import slot_mapping
from thalweg.hal.parts.sparse import Sparse
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.attention import Attention
from thalweg.models.layers.block_sparse import SelectedBlocks
from thalweg.models.layers.compressed import ClosedWindows, Entries
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import RMSNorm
from thalweg.models.spec.pooled_keys import BASE, DIGITS


class PooledKeys:
    """x [T, hidden] -> `flow.entries`."""

    backend = None

    def __init__(self, ctx: Context, spec: declared.PooledKeys, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._rate, self._dim, self._axes = place, spec.rate, spec.dim, bool(spec.rope.sections)
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        (self.layout,) = self.spec.parts(ctx.block_tokens)
        self._k = Linear(ctx, weights["k"])
        self._norm = RMSNorm(ctx, declared.Norm("", spec.dim, spec.eps, 1.0), weights["norm"])
        self._write = ctx.bind(ops.index_write, size=spec.row)
        self._pool = ctx.bind(ops.pool_windows, overlaps=False, rate=spec.rate)
        self._rope = ctx.bind(
            ops.rope, rotary_dim=spec.rope.dim, interleaved=spec.rope.interleaved, heads=1, kv_heads=1, head_dim=spec.dim
        )
        self.specs: dict[str, Any] = {"k": self._k.specs, "norm": self._norm.specs}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> None:
        batch, at = flow.batch, self._place
        table, key = batch.block_tables[at.group], self._k(p["k"], x, flow)
        rows = torch.cat([key, torch.zeros_like(key)], -1)  # equal gates: the pooled value is the mean
        if self._axes:
            assert flow.axes is not None
            rows = torch.cat([rows, write_digits(flow.axes.at).to(key.dtype)], -1)
        pages = self._write(flow.caches[at.layer], rows, table, batch.token_seq, batch.positions, batch.slots)
        flow.caches[at.layer] = pages
        windows = ClosedWindows.of(flow, self._rate)
        seq = torch.where(windows.ends < 0, 0, windows.seq)
        even = torch.zeros((self._rate, key.shape[1]), dtype=torch.float32, device=key.device)
        pooled = self._norm(p["norm"], self._pool(pages[..., : 2 * self._dim], table, seq, windows.ends, even)).unsqueeze(1)
        starts, turn = (windows.ends + 1 - self._rate).clamp(min=0), flow.tables[at.table]
        if self._axes:  # the first token may be of an earlier step
            assert flow.axes is not None
            first = pages[slot_mapping(pages, table, seq, starts, batch.slots)][:, 2 * self._dim :]
            turn = flow.axes.rows(at.table, read_digits(first).clamp(0, flow.axes.most))
            starts = (torch.ones_like(starts).cumsum(0) - 1).to(torch.int32)
        pooled, _ = self._rope(pooled, pooled, starts, turn)
        flow.entries = Entries(windows, (pooled.squeeze(1),))


def write_digits(at: Array) -> Array:
    """i64[T, 3] -> i64[T, 3 * DIGITS], the lowest first."""
    digits = [torch.div(at, BASE**i, rounding_mode="floor") % BASE for i in range(DIGITS)]
    return torch.stack(digits, -1).flatten(1)


def read_digits(digits: Array) -> Array:
    """[N, 3 * DIGITS] of any dtype -> i64[N, 3]."""
    each = digits.long().unflatten(1, (-1, DIGITS))
    return sum((each[..., i] * BASE**i for i in range(1, DIGITS)), each[..., 0])


class PooledSparseAttention(Attention):
    """x [T, hidden] -> [T, hidden], or only the sampled rows."""

    def __init__(self, ctx: Context, spec: declared.PooledSparseAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        assert spec.rope is not None
        assert spec.norm is not None
        super().__init__(ctx, spec, weights, place)
        self._block, self._index_heads, self._index_dim = spec.block, spec.index_heads, spec.index_dim
        self._index_q = Linear(ctx, weights["index_q"])
        self._index_norm = RMSNorm(ctx, declared.Norm("", spec.index_dim, spec.norm.eps, 1.0), weights["index_norm"])
        self.specs |= {"index_q": self._index_q.specs, "index_norm": self._index_norm.specs}
        if not self.spec.top:
            return
        if ctx.kv_dtype not in ("", ctx.dtype):
            raise ConfigError(
                "kv_cache_dtype: this model reads blocks of keys, and this version only caches those in the model's dtype: "
                f"remove the flag, or set max_model_len to at most {self.spec.top}"
            )
        self._index_rope = ctx.bind(
            ops.rope, rotary_dim=spec.rope.dim, interleaved=spec.rope.interleaved, heads=spec.index_heads,
            kv_heads=spec.index_heads, head_dim=spec.index_dim,
        )  # fmt: skip
        self._best = ctx.bind(ops.index_top, top=spec.top // spec.block, heads=spec.index_heads, size=spec.index_dim)
        self._attend = SelectedBlocks(ctx, spec, self.backend, self.spec)

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        sparse = flow.batch.get(Sparse) if self.spec.top else None
        if sparse is not None:
            self._select(p, x, sparse, flow)
        return super().__call__(p, x, flow)

    def _select(self, p: Mapping[str, Any], x: Array, sparse: Sparse, flow: Flow) -> None:
        """The blocks go to `flow.chosen`."""
        assert flow.entries is not None
        batch, row, (held,) = flow.batch, sparse.row.long(), flow.entries.values
        q = self._index_q(p["index_q"], x, flow).unflatten(-1, (self._index_heads, self._index_dim))
        q = self._index_norm(p["index_norm"], q)
        q, _ = self._index_rope(q, q, batch.positions if flow.rows is None else flow.rows, flow.tables[self._place.table])
        seen, seq = batch.positions[row] + 1, batch.token_seq[row]
        closed = torch.div(seen, self._block, rounding_mode="floor").to(torch.int32)
        even = torch.full(q[row].shape[:2], self._index_dim**-0.5, dtype=torch.float32, device=q.device)
        best = self._best(q[row], even, held, batch.block_tables[flow.entries.group], seq, closed - 1)
        open_block = torch.where(seen % self._block > 0, closed, -1)
        flow.chosen = torch.cat([best, open_block[:, None]], 1)[:, None].expand(-1, self.spec.kv_heads, -1)
