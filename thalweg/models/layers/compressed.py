"""Compressed attention (DeepSeek-V4): see `spec.compressed` for its three mixers, which follow each other in a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from thalweg.errors import ConfigError
from thalweg.hal import ops
from thalweg.hal.step import SCRATCH, Array, StepBatch
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.layers.norm import RMSNorm
from thalweg.models.weights import ParamSpec


@dataclass(frozen=True, slots=True)
class ClosedWindows:
    """The windows that end in a step, with rows to spare. T: its tokens, S: its sequences."""

    seq: Array
    """i32[N]: the sequence. Of rows to spare it is S, one after the last."""
    ends: Array
    """i32[N]: the position of the last token, -1 in rows to spare."""

    @classmethod
    def of(cls, flow: Flow, rate: int) -> ClosedWindows:
        """Those of the step, which all layers share."""
        if rate not in flow.closed:
            flow.closed[rate] = cls.find(flow.batch, rate)
        return flow.closed[rate]

    @classmethod
    def find(cls, batch: StepBatch, rate: int) -> ClosedWindows:
        """A sequence ends at most one more of them than its tokens fill, so N = T // rate + S."""
        seq, positions = batch.token_seq, batch.positions
        count = seq.shape[0] // rate + batch.slots.shape[0]
        closes = ((positions + 1) % rate == 0) & (batch.slots[seq.long()] != SCRATCH)
        place = torch.where(closes, closes.to(torch.int64).cumsum(0) - 1, count)
        none = torch.full((count + 1,), -1, dtype=torch.int64, device=seq.device)
        row = none.index_put((place,), torch.arange(seq.shape[0], device=seq.device))[:count]
        there = row.clamp(min=0)
        return cls(
            torch.where(row < 0, batch.slots.shape[0], seq[there]).to(torch.int32),
            torch.where(row < 0, -1, positions[there]).to(torch.int32),
        )


@dataclass(frozen=True, slots=True)
class Entries:
    """Between the mixers of a layer: the entries of this step, then the caches with all of them."""

    windows: ClosedWindows | None
    """None: each token has an entry."""
    values: tuple[Array, ...]
    """[N, D] of each array, later the caches [blocks, m, D]."""
    group: int = 0
    """Of the caches."""
    chosen: Array | None = None
    """i32[T, K]: numbers of those that each token reads, where a layer has selected them for others too."""
    blocks: Array | None = None
    """i32[T, B]: numbers of blocks of entries among which later layers select, where a layer has selected them."""


class WindowPooling:
    """x [T, hidden] -> `flow.entries`."""

    backend = None

    def __init__(self, ctx: Context, spec: declared.WindowPooling, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._rate, self._outputs = place, spec.rate, spec.outputs
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        (self.layout,) = self.spec.parts(ctx.block_tokens)
        self._down = Linear(ctx, weights["down"])
        self._write = ctx.bind(ops.index_write, size=sum(spec.outputs))
        self._pool = ctx.bind(ops.pool_windows, overlaps=spec.overlaps, rate=spec.rate)
        self._rope: Any = None
        if spec.rope is not None:
            self._rotary = spec.rope.dim
            self._rope = bind_rope(ctx, spec.rope, 1 if spec.index_dim else 0, 1)
        self.specs: dict[str, Any] = {"down": self._down.specs}
        self._norms = {}
        for key, size in (("", spec.dim), ("index_", spec.index_dim)):
            if size:
                self._norms[key] = RMSNorm(ctx, declared.Norm("", size, spec.eps), weights[f"{key}norm"])
                self.specs[f"{key}norm"] = self._norms[key].specs
                if spec.biased:
                    self.specs[f"{key}bias"] = {"weight": ParamSpec(weights[f"{key}bias"]["weight"], "float32")}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> None:
        batch, at = flow.batch, self._place
        table, rows = batch.block_tables[at.group], self._down(p["down"], x, flow)
        pages = self._write(flow.caches[at.layer], rows, table, batch.token_seq, batch.positions, batch.slots)
        flow.caches[at.layer] = pages
        windows = ClosedWindows.of(flow, self._rate)
        seq = torch.where(windows.ends < 0, 0, windows.seq)
        parts, result = pages.split([a + b for a, b in zip(self._outputs[::2], self._outputs[1::2], strict=True)], -1), []
        for (key, norm), part in zip(self._norms.items(), parts, strict=True):
            bias = p.get(f"{key}bias", {}).get("weight")
            if bias is None:
                bias = torch.zeros((self._rate, part.shape[-1] // 2), device=x.device)
            result.append(norm(p[f"{key}norm"], self._pool(part, table, seq, windows.ends, bias)))
        if self._rope is None:
            flow.entries = Entries(windows, tuple(result))
            return
        starts = (windows.ends + 1 - self._rate).clamp(min=0)
        still, turning = zip(*(split_tail(each.unsqueeze(1), self._rotary) for each in result), strict=True)
        turned = self._rope(turning[-1], turning[0], starts, flow.tables[at.table])[::-1]
        values = tuple(torch.cat(pair, -1).squeeze(1) for pair in zip(still, turned, strict=False))
        flow.entries = Entries(windows, values)


class KeptEntries:
    """`flow.entries` -> the same, with the caches."""

    backend = None

    def __init__(self, ctx: Context, spec: declared.KeptEntries, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._rate = place, spec.rate
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts(ctx.block_tokens)
        self._writes = [ctx.bind(ops.index_write, size=size) for size in self.spec.sizes]
        self.specs: dict[str, Any] = {}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> None:
        batch, at, found = flow.batch, self._place, flow.entries
        assert found is not None
        assert found.windows is not None
        table = batch.block_tables[at.group]
        # One sequence more, whose rows go to the scratch block.
        table = torch.cat([table, torch.zeros_like(table[:1])])
        slots = torch.cat([batch.slots, torch.full_like(batch.slots[:1], SCRATCH)])
        number = torch.div(found.windows.ends, self._rate, rounding_mode="floor").clamp(min=0).to(torch.int32)
        caches = tuple(
            write(held, new, table, found.windows.seq, number, slots)
            for write, held, new in zip(self._writes, flow.caches[at.layer], found.values, strict=True)
        )
        flow.caches[at.layer] = caches
        flow.entries = Entries(found.windows, caches, at.group)


class CompressedAttention:
    """x [T, hidden] -> [T, hidden]. Heads and their groups are divided among ranks, keys and entries are not."""

    backend = None

    def __init__(self, ctx: Context, spec: declared.CompressedAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        if ctx.kv_dtype not in ("", ctx.dtype):
            raise ConfigError(
                "kv_cache_dtype: this model has compressed attention, cached in the model's dtype only: remove the flag"
            )
        self._place, self._rate, self._dim, self._index_dim = place, spec.rate, spec.head_dim, spec.index_dim
        self._heads, self._groups = ctx.share(spec.heads, "attention heads"), ctx.share(spec.groups, "groups of heads")
        self._rotary, self._index_heads, self._all = spec.rope.dim, spec.index_heads if spec.top else 0, not spec.top
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        (self.layout,) = self.spec.parts(ctx.block_tokens)
        self._down, self._q, self._out = Linear(ctx, weights["down"]), Linear(ctx, weights["q"]), RowLinear(ctx, weights["out"])
        self._q_norm, self._kv_norm = (
            RMSNorm(ctx, declared.Norm("", size, spec.eps), weights[key])
            for key, size in (("q_norm", spec.q_latent), ("kv_norm", spec.head_dim))
        )
        self._head_norm = ctx.bind(ops.rms_norm, size=spec.head_dim, eps=spec.eps) if spec.normed else None
        self._round = ctx.bind(ops.round_groups, form=spec.form, group=declared.compressed.GROUP) if spec.form else None
        self._rope = bind_rope(ctx, spec.rope, self._heads + self._index_heads, 1)
        self._back = bind_rope(ctx, spec.rope, self._heads, 0)
        self._write = ctx.bind(ops.index_write, size=spec.head_dim)
        self._attend = ctx.bind(
            ops.compressed_attention, scale=spec.head_dim**-0.5, window=spec.window, heads=self._heads, size=spec.head_dim
        )
        self._group = ctx.bind(
            ops.head_linear, turned=False, heads=self._groups, in_features=self._heads * spec.head_dim // self._groups,
            out_features=spec.group_rank,
        )  # fmt: skip
        self.specs: dict[str, Any] = {
            "down": self._down.specs, "q": self._q.specs, "out": self._out.specs,
            "q_norm": self._q_norm.specs, "kv_norm": self._kv_norm.specs,
            "sinks": {"weight": ParamSpec(weights["sinks"]["weight"], "float32")},
            "groups": {
                "weight": ParamSpec(weights["groups"]["weight"], ctx.dtype, self._group.pack, matrices=self._groups)
            },
        }  # fmt: skip
        if spec.top:
            self._index_q, self._index_weights = Linear(ctx, weights["index_q"]), Linear(ctx, weights["index_weights"])
            self._top = ctx.bind(ops.index_top, top=spec.top, heads=spec.index_heads, size=spec.index_dim)
            self.specs |= {"index_q": self._index_q.specs, "index_weights": self._index_weights.specs}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        batch, at, rotary = flow.batch, self._place, self._rotary
        table, angles = batch.block_tables[at.group], flow.tables[at.table]
        down = self._down(p["down"], x, flow)
        latent, key = down.split([down.shape[1] - self._dim, self._dim], -1)
        latent = self._q_norm(p["q_norm"], latent.contiguous())
        q = self._q(p["q"], latent, flow).unflatten(-1, (self._heads, self._dim))
        if self._head_norm is not None:
            q = self._head_norm(q)
        key = self._kv_norm(p["kv_norm"], key.contiguous()).unsqueeze(1)
        (still, turning), (key, tail) = split_tail(q, rotary), split_tail(key, rotary)
        index = None
        if not self._all:
            index = self._index_q(p["index_q"], latent, flow).unflatten(-1, (self._index_heads, self._index_dim))
            index, index_tail = split_tail(index, rotary)
            turning = torch.cat([turning, index_tail], 1)
        turning, tail = self._rope(turning, tail, batch.positions, angles)
        q, key = torch.cat([still, turning[:, : self._heads]], -1), torch.cat([key, tail], -1)
        if self._round is not None:
            key = self._round(key)
        if index is not None:
            index = torch.cat([index, turning[:, self._heads :]], -1)
        pages = self._write(flow.caches[at.layer], key.squeeze(1), table, batch.token_seq, batch.positions, batch.slots)
        flow.caches[at.layer] = pages
        entries, entry_table, chosen = self._choose(p, x, index, pages, flow)
        out = self._attend(
            q, pages, table, batch.token_seq, batch.positions, p["sinks"]["weight"], entries, entry_table, chosen
        )
        still, turning = split_tail(out, rotary)
        # The inverse rotation is the rotation of pairs in the other order.
        back = _swap_pairs(self._back(_swap_pairs(turning), _swap_pairs(turning), batch.positions, angles)[0])
        out = torch.cat([still, back], -1).reshape(out.shape[0], self._groups, -1)
        return self._out(p["out"], self._group(out, p["groups"]["weight"]).flatten(1), flow)

    def _choose(
        self, p: Mapping[str, Any], x: Array, index: Array | None, pages: Array, flow: Flow
    ) -> tuple[Array, Array, Array]:
        """The caches of entries, their block table, and the entries that each token reads."""
        batch = flow.batch
        if not self._rate:
            none = torch.zeros((x.shape[0], 0), dtype=torch.int32, device=x.device)
            return pages, batch.block_tables[self._place.group], none
        assert flow.entries is not None
        held, *more = flow.entries.values
        table = batch.block_tables[flow.entries.group]
        last = torch.div(batch.positions + 1, self._rate, rounding_mode="floor").to(torch.int32) - 1
        if index is not None:
            by = self._index_weights(p["index_weights"], x, flow).float() * (self._index_heads * self._index_dim) ** -0.5
            return held, table, self._top(index, by, more[0], table, batch.token_seq, last)
        at = torch.arange(table.shape[1] * held.shape[1], dtype=torch.int32, device=x.device)[None]
        return held, table, torch.where(at <= last[:, None], at, -1)


def bind_rope(ctx: Context, rope: declared.Rope, heads: int, kv_heads: int) -> Any:
    return ctx.bind(
        ops.rope, rotary_dim=rope.dim, interleaved=rope.interleaved, heads=max(1, heads), kv_heads=max(1, kv_heads),
        head_dim=rope.dim,
    )  # fmt: skip


def split_tail(x: Array, size: int) -> tuple[Array, Array]:
    """The last `size` values of each head, and those before: x [T, heads, D]."""
    still, tail = x.split([x.shape[-1] - size, size], -1)
    return still, tail.contiguous()


def _swap_pairs(x: Array) -> Array:
    return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
