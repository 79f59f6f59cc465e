"""Attention as it is defined: gather a sequence's keys and values, softmax(q k^T * scale) v, one sequence at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.kv import KVLayout
from thalweg.hal.step import SCRATCH, StepBatch

QUERIES = 256
"""Query tokens handled at once, to bound memory."""


class ReferenceAttention(AttentionBackend):
    """Arithmetic is float64: however many rows a matrix product has, and in whatever order it sums, the result rounded
    to the model's dtype is the same, so a token does not depend on what it was batched or chunked with."""

    name = "reference"
    batch_invariant = True

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind not in ("full", "window"):
            return f"kind {spec.kind!r} is not defined here, only full and window"
        if spec.heads % spec.kv_heads:
            return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
        if spec.kv_dtype not in ("", spec.dtype):
            return f"the cache holds {spec.dtype}, not {spec.kv_dtype}"
        return None

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        shape = (2, block_tokens, spec.kv_heads, spec.head_dim)
        return KVLayout(shape, spec.dtype, f"kv-token-head/{spec.dtype}/{'x'.join(map(str, shape))}")

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec
    ) -> tuple[Tensor, Tensor]:
        table = batch.block_tables[group]
        kv = _store(kv, k, v, table, batch)
        out = torch.zeros_like(q)
        query, context, last = batch.query.tolist(), batch.context.tolist(), batch.last_row.tolist()
        for s, slot in enumerate(batch.slots.tolist()):
            if slot == SCRATCH:
                continue
            first = last[s] + 1 - query[s]
            for at in range(0, query[s], QUERIES):
                n = min(QUERIES, query[s] - at)
                rows = slice(first + at, first + at + n)
                out[rows] = _attend_one(q[rows], kv, table[s], context[s] + at, spec)
        return out, kv


def _store(kv: Tensor, k: Tensor, v: Tensor, table: Tensor, batch: StepBatch) -> Tensor:
    """A new cache that holds the batch's k and v as well. Padding goes to the scratch block."""
    size = kv.shape[2]
    column = (batch.positions // size).clamp(max=table.shape[1] - 1)
    block = torch.where(batch.slots[batch.token_seq.long()] == SCRATCH, SCRATCH, table[batch.token_seq.long(), column.long()])
    where = (block.long()[:, None], torch.arange(2)[None, :], (batch.positions % size).long()[:, None])
    return kv.index_put(where, torch.stack([k, v], 1))


def _attend_one(q: Tensor, kv: Tensor, table: Tensor, start: int, spec: AttnSpec) -> Tensor:
    """q [n, heads, D] of tokens at positions start, start + 1, ... of the sequence whose blocks are `table`."""
    n, size = q.shape[0], kv.shape[2]
    low = max(0, start - spec.window + 1) if spec.window else 0
    blocks = table[low // size : -(-(start + n) // size)].long()
    held = kv[blocks].transpose(0, 1).flatten(1, 2)[:, low % size :][:, : start + n - low]
    keys, values = held.to(torch.float64).repeat_interleave(spec.heads // spec.kv_heads, dim=2)
    scores = torch.einsum("qhd,khd->hqk", q.to(torch.float64), keys) * spec.scale
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    behind = torch.arange(start, start + n)[:, None] - torch.arange(low, start + n)[None, :]
    hidden = (behind < 0) | (behind >= spec.window) if spec.window else behind < 0
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
