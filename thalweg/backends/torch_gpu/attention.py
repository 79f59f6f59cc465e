"""Paged attention in torch's own operations, for any device and any graph: the fallback without a kernel.

Slow and exact. Sizes follow the tables' width, never the values in them, so a step of decoding sequences can be captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.kv import KVLayout
from thalweg.hal.parts.spans import Spans
from thalweg.hal.step import SCRATCH, StepBatch, StepShape

QUERIES = 256
"""Query tokens of one sequence handled at once."""
GATHER = 1 << 26
"""Values of keys gathered at once."""


class GatherAttention(AttentionBackend):
    """Arithmetic is float64. In whatever order a matrix product sums, the result rounded to the model's dtype is the same. A
    token therefore does not depend on the rest of the batch."""

    name = "torch-gather"
    batch_invariant = by_token = True
    known_as: tuple[str, ...] = ("TORCH_SDPA",)

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind not in ("full", "window", "chunked", "latent"):
            return f"runs kinds full, window, chunked and latent, not {spec.kind}"
        if spec.kind == "latent" and (spec.kv_heads != 1 or not 0 < spec.latent <= spec.head_dim):
            return f"latent attention has one KV head and values in its keys, not {spec.kv_heads} and {spec.latent} elements"
        if spec.heads % spec.kv_heads:
            return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
        if spec.kv_dtype not in ("", spec.dtype):
            return f"the cache holds {spec.dtype}, not {spec.kv_dtype}"
        if spec.sinks:
            return "has no sinks"
        return None

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        shape = (1 if spec.kind == "latent" else 2, block_tokens, spec.kv_heads, spec.head_dim)
        return KVLayout(shape, spec.dtype, f"kv-token-head/{spec.dtype}/{'x'.join(map(str, shape))}")

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        """Under "runs", as numbers: (sequence, first row, tokens, position of the first) of every stretch of one sequence.
        Nothing where each has one new token, or as many as its bucket says: then every token reads the table of its
        sequence, so that one graph serves all batches of the bucket."""
        if batch.uniform == 1 or (shape is not None and shape.uniform):
            return {}
        return {"runs": tuple(_runs(batch))}

    def plan_on_device(self, batch: StepBatch, group: int, spec: AttnSpec) -> dict[str, Any]:
        """Nothing: every token reads the table of its sequence."""
        return {}

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        table = batch.block_tables[group]
        self.store(k, v, kv, batch, group, spec)
        spans = batch.get(Spans) if spec.spans else None
        until = batch.positions if spans is None else torch.maximum(batch.positions, spans.last[:, 0])
        if batch.uniform == 1:
            return _decode(q, kv, table, batch.positions, until, spec), kv
        runs = batch.metadata[group].get("runs") if batch.metadata else tuple(_runs(batch))
        if runs is None:
            return _decode(q, kv, table.index_select(0, batch.token_seq), batch.positions, until, spec), kv
        out = q.new_zeros(*q.shape[:2], spec.latent or spec.head_dim)
        for seq, row, n, start in runs:
            out[row : row + n] = _stretch(q[row : row + n], kv, table[seq], start, spec)
        return out, kv

    def store(self, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec) -> None:
        """In place. Padding goes to the scratch block."""
        table, size, seq = batch.block_tables[group], kv.shape[2], batch.token_seq
        column = (batch.positions // size).clamp(max=table.shape[1] - 1)
        block = torch.where(batch.slots[seq] == SCRATCH, SCRATCH, table[seq, column])
        new = [k] if spec.kind == "latent" else [k, v]
        half = torch.arange(len(new), device=kv.device, dtype=torch.int32)
        kv.index_put_((block[:, None], half[None, :], (batch.positions % size)[:, None]), torch.stack(new, 1))


class BlockAttention(GatherAttention):
    """The same for blocks of masks, whose tokens see each other. Every token reads the whole table of its sequence."""

    name = "torch-gather-blocks"
    spans = drafts_only = True
    known_as = ()

    def supports(self, spec: AttnSpec) -> str | None:
        return super().supports(spec) if spec.spans else "is for blocks whose tokens see each other"

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        return {}


def _runs(batch: StepBatch) -> Iterator[tuple[int, int, int, int]]:
    query, context, last = batch.query.tolist(), batch.context.tolist(), batch.last_row.tolist()
    for s, slot in enumerate(batch.slots.tolist()):
        if slot == SCRATCH:
            continue
        for at in range(0, query[s], QUERIES):
            yield s, last[s] + 1 - query[s] + at, min(QUERIES, query[s] - at), context[s] + at


def _decode(q: Tensor, kv: Tensor, table: Tensor, at: Tensor, until: Tensor, spec: AttnSpec) -> Tensor:
    """One token per row of the table. at, until i32[n]: its position, and the last that it sees. Values at a table's unused
    part are replaced by zeros: they may be anything, NaN too."""
    keys = table.shape[1] * kv.shape[2]
    most = max(1, GATHER // (keys * spec.kv_heads * spec.head_dim))
    parts = []
    for first in range(0, q.shape[0], most):
        rows = slice(first, first + most)
        held = kv[table[rows]].transpose(1, 2).flatten(2, 3)  # [n, 2 or 1, L, kv_heads, D]
        seen = _attention_mask(at[rows, None], until[rows, None], torch.arange(keys, device=q.device, dtype=torch.int32), spec)
        k, v = _parts(torch.where(seen[:, None, :, None, None], held, 0).to(torch.float64), spec)
        parts.append(_formula(q[rows].unsqueeze(1), k, v, seen[:, None, :], spec)[:, 0])
    return torch.cat(parts)


def _stretch(q: Tensor, kv: Tensor, table: Tensor, start: int, spec: AttnSpec) -> Tensor:
    """q [n, heads, D] of tokens at positions start, start + 1, ... of the sequence with these blocks."""
    n, size = q.shape[0], kv.shape[2]
    low = max(0, _first(start, spec)) if spec.window else 0
    blocks = table[low // size : -(-(start + n) // size)]
    held = kv[blocks].transpose(0, 1).flatten(1, 2)[:, low % size :][:, : start + n - low]
    k, v = _parts(held.to(torch.float64)[None], spec)
    here = torch.arange(start, start + n, device=q.device)
    seen = _attention_mask(here[:, None], here[:, None], torch.arange(low, start + n, device=q.device), spec)
    return _formula(q[None], k, v, seen[None], spec)[0]


def _attention_mask(at: Tensor, until: Tensor, key: Tensor, spec: AttnSpec) -> Tensor:
    """Does a token at this position, which sees none after `until`, see that key?"""
    return (key <= until) & (key >= _first(at, spec)) if spec.window else key <= until


def _first(position: Any, spec: AttnSpec) -> Any:
    """Of the positions that a token at this one sees, where it has a window or a chunk."""
    return position // spec.window * spec.window if spec.kind == "chunked" else position - spec.window + 1


def _parts(held: Tensor, spec: AttnSpec) -> tuple[Tensor, Tensor]:
    """[n, 2 or 1, L, kv_heads, D] -> keys and values."""
    return (held[:, 0], held[:, 0, ..., : spec.latent]) if spec.kind == "latent" else (held[:, 0], held[:, 1])


def _formula(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, spec: AttnSpec) -> Tensor:
    """q [n, m, heads, D], k and v f64[n, L, kv_heads, D], seen bool[n, m, L] -> [n, m, heads, D], or the latent D of v."""
    wide = q.to(torch.float64).view(*q.shape[:2], spec.kv_heads, spec.heads // spec.kv_heads, spec.head_dim)
    scores = torch.einsum("nmhpd,nlhd->nhpml", wide, k) * spec.scale
    if spec.softcap:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    weights = torch.softmax(scores.masked_fill(~seen[:, None, None], float("-inf")), -1)
    return torch.einsum("nhpml,nlhd->nmhpd", weights, v).flatten(2, 3).to(q.dtype)
