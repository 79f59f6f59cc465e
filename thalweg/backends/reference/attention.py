"""Attention as it is defined: gather a sequence's keys and values, softmax(q k^T * scale) v, one sequence at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.kv import KVLayout, kept_width
from thalweg.hal.ops.quantise import KV_DTYPES, decode_kv, encode_kv
from thalweg.hal.parts.spans import Spans
from thalweg.hal.step import SCRATCH, StepBatch

QUERIES = 256
"""Query tokens handled at once, to bound memory."""


class ReferenceAttention(AttentionBackend):
    """Arithmetic is float64. However many rows a matrix product has, and in whatever order it sums, the result rounded to the
    model's dtype is the same. A token therefore does not depend on its batch or its chunk."""

    name = "reference"
    batch_invariant = True
    spans = biased = by_token = True

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind not in ("full", "window", "chunked", "latent"):
            return f"kind {spec.kind!r} is not defined here, only full, window, chunked and latent"
        if spec.kind == "latent" and (spec.kv_heads != 1 or not 0 < spec.latent <= spec.head_dim):
            return (
                f"latent attention has one KV head and values within its keys, not {spec.kv_heads} and {spec.latent} elements"
            )
        if spec.heads % spec.kv_heads:
            return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
        if spec.kv_dtype not in ("", spec.dtype, *KV_DTYPES):
            return f"the cache holds {spec.dtype}, {', '.join(KV_DTYPES)}, not {spec.kv_dtype}"
        return None

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        dtype = spec.kv_dtype or spec.dtype
        shape = (1 if spec.kind == "latent" else 2, block_tokens, spec.kv_heads, kept_width(spec.head_dim, dtype))
        return KVLayout(shape, dtype, f"kv-token-head/{dtype}/{'x'.join(map(str, shape))}")

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        return self._all(q, k, v, kv, batch, group, spec, sinks)

    def attend_biased(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self._all(q, k, v, kv, batch, group, spec, None, bias)

    def _all(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None, bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        table = batch.block_tables[group]
        kv = _store(kv, [k] if spec.kind == "latent" else [k, v], table, batch, spec)
        out = q.new_zeros(*q.shape[:2], spec.latent or spec.head_dim)
        query, context, last = batch.query.tolist(), batch.context.tolist(), batch.last_row.tolist()
        spans = batch.get(Spans) if spec.spans else None
        for s, slot in enumerate(batch.slots.tolist()):
            if slot == SCRATCH:
                continue
            first = last[s] + 1 - query[s]
            for at in range(0, query[s], QUERIES):
                n = min(QUERIES, query[s] - at)
                rows = slice(first + at, first + at + n)
                ahead = None if spans is None else spans.last[rows, 0]
                out[rows] = _attend_one(q[rows], kv, table[s], context[s] + at, spec, sinks, ahead, bias)
        return out, kv


def _store(kv: Tensor, new: list[Tensor], table: Tensor, batch: StepBatch, spec: AttnSpec) -> Tensor:
    """A new cache that holds the batch's new keys (and values) as well. Padding goes to the scratch block."""
    size = kv.shape[2]
    column = (batch.positions // size).clamp(max=table.shape[1] - 1)
    block = torch.where(batch.slots[batch.token_seq.long()] == SCRATCH, SCRATCH, table[batch.token_seq.long(), column.long()])
    where = (block.long()[:, None], torch.arange(len(new))[None, :], (batch.positions % size).long()[:, None])
    result = encode_kv(torch.stack(new, 1), spec.kv_dtype)
    if result.element_size() == 1:  # 8-bit floats have no index_put
        return kv.view(torch.uint8).index_put(where, result.view(torch.uint8)).view(kv.dtype)
    return kv.index_put(where, result)


def _attend_one(
    q: Tensor, kv: Tensor, table: Tensor, start: int, spec: AttnSpec, sinks: Tensor | None, ahead: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """q [n, heads, D] of tokens at positions start, start + 1, ... of the sequence with the blocks `table`. ahead: the last
    position that each sees, if after its own. bias: as in `attend_biased`."""
    n, size = q.shape[0], kv.shape[2]
    at = torch.arange(start, start + n)[:, None]
    first = at // spec.window * spec.window if spec.kind == "chunked" else at - spec.window + 1 if spec.window else at * 0
    low = max(0, int(first[0]))
    end = start + n if ahead is None else max(start + n, int(ahead.max()) + 1)
    blocks = table[low // size : -(-end // size)].long()
    held = kv[blocks].transpose(0, 1).flatten(1, 2)[:, low % size :][:, : end - low]
    held = decode_kv(held, spec.kv_dtype, torch.float64).repeat_interleave(spec.heads // spec.kv_heads, dim=2)
    keys, values = held[0], held[0][..., : spec.latent] if spec.kind == "latent" else held[1]
    scores = torch.einsum("qhd,khd->hqk", q.to(torch.float64), keys) * spec.scale
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    key = torch.arange(low, end)[None, :]
    if bias is not None:
        scores = scores + bias.to(torch.float64)[:, (key - at).clamp(-spec.reach, spec.reach) + spec.reach]
    future = key > at if ahead is None else (key > at) & (key > ahead[:, None])
    scores = scores.masked_fill(future | (key < first), float("-inf"))
    if sinks is None:
        weights = torch.softmax(scores, -1)
    else:
        sink = sinks.to(torch.float64)[:, None, None].expand(-1, n, 1)
        weights = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
