"""Attention of encoders as it is defined: every token of a sequence sees every other, and nothing is kept."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.hal.attention import AttentionBackend, AttnSpec, RelativePositions, whole_sequences
from thalweg.hal.kv import KVLayout
from thalweg.hal.step import StepBatch


class ReferenceEncoderAttention(AttentionBackend):
    """In float64, as ReferenceAttention, and for the same reason. Its blocks hold nothing."""

    name = "reference-encoder"
    batch_invariant = True

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind != "encoder":
            return f"runs kind encoder, not {spec.kind}"
        if spec.heads % spec.kv_heads:
            return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
        if spec.placed and spec.heads != spec.kv_heads:
            return "distances have keys and queries for each head"
        return "sinks are not defined for encoders" if spec.sinks else None

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        return KVLayout((0,), spec.dtype, "none")

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        return self._all(q, k, v, batch, spec, None), kv

    def attend_biased(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self._all(q, k, v, batch, spec, bias), kv

    def attend_placed(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv: Tensor,
        batch: StepBatch,
        group: int,
        spec: AttnSpec,
        places: RelativePositions,
    ) -> tuple[Tensor, Tensor]:
        return self._all(q, k, v, batch, spec, places), kv

    def _all(
        self, q: Tensor, k: Tensor, v: Tensor, batch: StepBatch, spec: AttnSpec, more: Tensor | RelativePositions | None
    ) -> Tensor:
        out = torch.zeros_like(q)
        for rows in whole_sequences(batch):
            out[rows] = self._one(q[rows], k[rows], v[rows], spec, more)
        return out

    def _one(self, q: Tensor, k: Tensor, v: Tensor, spec: AttnSpec, more: Tensor | RelativePositions | None) -> Tensor:
        """One sequence: q [n, heads, D], k and v [n, kv_heads, D] -> [n, heads, D]."""
        keys, values = (x.to(torch.float64).repeat_interleave(spec.heads // spec.kv_heads, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q.to(torch.float64), keys) * spec.scale
        if spec.softcap:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        at = torch.arange(len(q), device=q.device)
        apart = at[None] - at[:, None]
        column = apart.clamp(-spec.reach, spec.reach) + spec.reach
        if isinstance(more, RelativePositions):
            scores = scores + _relative_scores(q, keys, more, more.row[column] - more.first) * spec.scale
        elif more is not None:
            scores = scores + more.to(torch.float64)[:, column]
        if spec.window:
            scores = scores.masked_fill(apart.abs() >= spec.window, -torch.inf)
        return torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), values).to(q.dtype)


def _relative_scores(q: Tensor, k: Tensor, places: RelativePositions, row: Tensor) -> Tensor:
    """Scores of queries with the keys of distances, and of keys with their queries: f64[heads, n, n]. row [n, n]: of each query
    and key."""
    total = torch.zeros(q.shape[1], *row.shape, dtype=torch.float64, device=q.device)
    if places.keys is not None:
        met = torch.einsum("qhd,chd->hqc", q.to(torch.float64), places.keys.to(torch.float64))
        total = total + met.gather(2, row.expand_as(total))
    if places.queries is not None:
        met = torch.einsum("khd,chd->hkc", k.to(torch.float64), places.queries.to(torch.float64))
        total = total + met.gather(2, row.T.expand_as(total)).transpose(1, 2)
    return total
