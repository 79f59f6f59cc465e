"""Compressed attention with shared entries (DeepSeek-V4.1): see `spec.shared_entries`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import SCRATCH, Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.compressed import CompressedAttention, Entries, bind_rope, split_tail
from thalweg.models.layers.linear import Linear, Product
from thalweg.models.layers.norm import RMSNorm
from thalweg.models.spec.compressed import GROUP

KEY_FORM, ENTRY_FORM, ENTRY_GROUP = "mxfp4", "nvfp4", 16
"""How keys of entries, and entries, are rounded."""


class SharedEntries:
    """x [T, hidden], or the pooled `flow.entries` -> `flow.entries` with the caches."""

    backend = None

    def __init__(self, ctx: Context, spec: declared.SharedEntries, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._rate, self._rotary = place, spec.rate, spec.rope.dim
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts(ctx.block_tokens)
        self._key = Product(ctx, weights["key"]["weight"])
        self._key_norm = RMSNorm(ctx, declared.Norm("", spec.index_dim, spec.eps), weights["key_norm"])
        self.specs: dict[str, Any] = {"key": {"weight": self._key.spec}, "key_norm": self._key_norm.specs}
        self._entry: Linear | None = None
        if spec.rate == 1:
            self._entry = Linear(ctx, weights["entry"])
            self._entry_norm = RMSNorm(ctx, declared.Norm("", spec.dim, spec.eps), weights["entry_norm"])
            self.specs |= {"entry": self._entry.specs, "entry_norm": self._entry_norm.specs}
        self._rope = bind_rope(ctx, spec.rope, 1, 1)
        self._rounds = (
            ctx.bind(ops.round_groups, form=ENTRY_FORM, group=ENTRY_GROUP),
            ctx.bind(ops.round_groups, form=KEY_FORM, group=GROUP),
        )
        self._writes = [ctx.bind(ops.index_write, size=size) for size in self.spec.sizes]

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> None:
        batch, at = flow.batch, self._place
        table, slots, windows = batch.block_tables[at.group], batch.slots, None
        if self._entry is not None:
            entry = self._entry_norm(p["entry_norm"], self._entry(p["entry"], x, flow))
            seq, number = batch.token_seq, batch.positions
        else:
            assert flow.entries is not None
            windows, (entry,) = flow.entries.windows, flow.entries.values
            assert windows is not None
            # One sequence more, whose rows go to the scratch block.
            table = torch.cat([table, torch.zeros_like(table[:1])])
            slots = torch.cat([slots, torch.full_like(slots[:1], SCRATCH)])
            seq = windows.seq
            number = torch.div(windows.ends, self._rate, rounding_mode="floor").clamp(min=0).to(torch.int32)
        key = self._key_norm(p["key_norm"], self._key(entry, p["key"]["weight"], None))
        still, turning = zip(*(split_tail(each.unsqueeze(1), self._rotary) for each in (entry, key)), strict=True)
        turned = self._rope(turning[1], turning[0], number * self._rate, flow.tables[at.table])[::-1]
        result = (torch.cat(pair, -1).squeeze(1) for pair in zip(still, turned, strict=True))
        caches = tuple(
            write(held, change(new), table, seq, number, slots)
            for write, held, change, new in zip(self._writes, flow.caches[at.layer], self._rounds, result, strict=True)
        )
        flow.caches[at.layer] = caches
        flow.entries = Entries(windows, caches, at.group)


class SharedAttention(CompressedAttention):
    """x [T, hidden] -> [T, hidden]. Divided among ranks as `CompressedAttention`."""

    def __init__(self, ctx: Context, spec: declared.SharedAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        super().__init__(ctx, spec, weights, place)
        self._selects, self._all = bool(spec.top), not spec.top
        self._blocks: Any = None
        self._among: Any = None
        if self._selects:
            self._round_index = ctx.bind(ops.round_groups, form=KEY_FORM, group=GROUP)
        if spec.blocks:
            self._blocks = ctx.bind(ops.index_blocks, top=spec.blocks, size=spec.block)
        if spec.among:
            self._among = ctx.bind(ops.index_among, top=spec.top, size=spec.block)

    def _choose(
        self, p: Mapping[str, Any], x: Array, index: Array | None, pages: Array, flow: Flow
    ) -> tuple[Array, Array, Array]:
        batch, found = flow.batch, flow.entries
        assert found is not None
        held, keys = found.values
        table = batch.block_tables[found.group]
        if index is not None:
            last = torch.div(batch.positions + 1, self._rate, rounding_mode="floor").to(torch.int32) - 1
            by = self._index_weights(p["index_weights"], x, flow).float() * (self._index_heads * self._index_dim) ** -0.5
            seen = self._round_index(index), by, keys, table, batch.token_seq, last
            chosen = self._top(*seen) if self._among is None else self._among(*seen, found.blocks)
            blocks = found.blocks if self._blocks is None else self._blocks(*seen)
            found = flow.entries = replace(found, chosen=chosen, blocks=blocks)
        assert found.chosen is not None
        return held, table, found.chosen
