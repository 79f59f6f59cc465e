"""Paged attention with a cache layout of this device's own: a block holds each head's tokens together, key beside value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.kv import KVLayout
from thalweg.hal.step import SCRATCH, StepBatch, StepShape


class HeadMajorAttention(AttentionBackend):
    """Sums in float64, so that a token's result is the same in any batch and any chunking."""

    name = "head-major"
    batch_invariant = True

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind not in ("full", "window"):
            return f"runs kinds full and window, not {spec.kind}"
        return None if spec.kv_dtype in ("", spec.dtype) else f"the cache holds {spec.dtype}, not {spec.kv_dtype}"

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        shape = (spec.kv_heads, block_tokens, 2 * spec.head_dim)
        return KVLayout(shape, spec.dtype, f"head-major/{spec.dtype}/{'x'.join(map(str, shape))}")

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        """Host work, outside the step, while the device is still busy with the one before: runs = (sequence, first row,
        tokens, first position) of every sequence that is not padding. Numbers in a plan stay numbers in the step."""
        runs = zip(batch.slots, batch.last_row + 1 - batch.query, batch.query, batch.context, strict=True)
        return {"runs": tuple((s, int(r), int(n), int(c)) for s, (slot, r, n, c) in enumerate(runs) if slot != SCRATCH and n)}

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        table, size, seq = batch.block_tables[group], kv.shape[2], batch.token_seq.long()
        column = (batch.positions // size).clamp(max=table.shape[1] - 1).long()
        block = torch.where(batch.slots[seq] == SCRATCH, SCRATCH, table[seq, column]).long()  # padding writes to scratch
        kv[block, :, (batch.positions % size).long()] = torch.cat([k, v], -1)
        out = torch.zeros_like(q)
        for s, row, n, start in batch.metadata[group]["runs"]:
            out[row : row + n] = _attend(q[row : row + n], kv, table[s], start, spec, sinks)
        return out, kv


def _attend(q: Tensor, kv: Tensor, table: Tensor, start: int, spec: AttnSpec, sinks: Tensor | None) -> Tensor:
    """q [n, heads, D] of the tokens at positions start, start + 1, ... of the sequence whose blocks are `table`."""
    end, size = start + q.shape[0], kv.shape[2]
    held = kv[table[: -(-end // size)].long()].transpose(0, 1).flatten(1, 2)[:, :end]  # [kv_heads, L, 2 D]
    low = max(0, start - spec.window + 1) if spec.window else 0
    keys, values = held[:, low:].double().repeat_interleave(spec.heads // spec.kv_heads, 0).chunk(2, -1)
    scores = q.double().transpose(0, 1) @ keys.transpose(1, 2) * spec.scale
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    behind = torch.arange(start, end)[:, None] - torch.arange(low, end)
    hidden = (behind < 0) | (behind >= spec.window) if spec.window else behind < 0
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:  # one more logit in the denominator, without a value
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, q.shape[0], 1)], -1)
    return (scores.softmax(-1)[..., : end - low] @ values).transpose(0, 1).to(q.dtype)
