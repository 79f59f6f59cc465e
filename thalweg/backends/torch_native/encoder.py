"""Attention of encoders with torch's fused attention, a sequence at a time: one sequence depends on no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.hal.attention import AttentionBackend, AttnSpec, RelativePositions, whole_sequences
from thalweg.hal.kv import KVLayout
from thalweg.hal.step import StepBatch

PIECE = 256
"""The fewest queries with a window that are computed together."""


class TorchEncoderAttention(AttentionBackend):
    """Nothing is kept, so its blocks have no bytes."""

    name = "torch-encoder"
    batch_invariant = True
    known_as = ("TORCH_SDPA",)

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind != "encoder":
            return f"runs kind encoder, not {spec.kind}"
        if spec.dtype not in ("float32", "bfloat16"):
            return f"runs float32 and bfloat16, not {spec.dtype}"
        if spec.heads % spec.kv_heads:
            return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
        if spec.placed and (spec.window or spec.heads != spec.kv_heads):
            return "distances have keys and queries for each head, and no windows"
        if spec.softcap or spec.sinks:
            return "the fused attention underneath has no softcap and no sinks"
        return None

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        return KVLayout((0,), spec.dtype, "none")

    def metadata(self, batch: StepBatch, group: int, *rest: Any) -> Mapping[str, Any]:
        """ "spans": (first row, one past the last) of every sequence, as numbers, so that a device need not be asked for them.
        None where each sequence has one token, which sees only itself."""
        spans = whole_sequences(batch)
        return {} if batch.uniform == 1 else {"spans": tuple((s.start, s.stop) for s in spans)}

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        return self._all(q, k, v, batch, group, spec, None), kv

    def attend_biased(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self._all(q, k, v, batch, group, spec, bias), kv

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
        return self._all(q, k, v, batch, group, spec, places), kv

    def _all(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        batch: StepBatch,
        group: int,
        spec: AttnSpec,
        more: Tensor | RelativePositions | None,
    ) -> Tensor:
        if batch.uniform == 1:
            return v.repeat_interleave(spec.heads // spec.kv_heads, 1)
        out = torch.zeros_like(q)
        found = batch.metadata[group]["spans"] if batch.metadata else [(s.start, s.stop) for s in whole_sequences(batch)]
        for first, stop in found:
            one, keys, values = (x[first:stop].transpose(0, 1).contiguous() for x in (q, k, v))
            for a, b in _pieces(stop - first, spec.window):
                low, high = (max(0, a - spec.window + 1), min(stop - first, b + spec.window - 1)) if spec.window else (a, b)
                seen = slice(low, high)
                mask: Tensor | None
                if isinstance(more, RelativePositions):
                    mask = _relative_scores(one, keys, spec, more)
                else:
                    mask = _mask(q, (a, b), (low, high), spec, more)
                result = F.scaled_dot_product_attention(
                    one[None, :, a:b], keys[None, :, seen], values[None, :, seen], scale=spec.scale,
                    attn_mask=mask, enable_gqa=spec.heads != spec.kv_heads,
                )  # fmt: skip
                out[first + a : first + b] = result[0].transpose(0, 1)
        return out


def _pieces(n: int, window: int) -> list[tuple[int, int]]:
    """Queries computed together: all n, or so many that most of the keys between their windows are seen."""
    step = max(window, PIECE) if window else n
    return [(a, min(n, a + step)) for a in range(0, n, step)]


def _mask(q: Tensor, rows: tuple[int, int], seen: tuple[int, int], spec: AttnSpec, bias: Tensor | None) -> Tensor | None:
    """The term added to scores [1, heads or 1, queries, keys]. None: nothing."""
    if bias is None and (not spec.window or max(seen[1] - rows[0], rows[1] - seen[0]) <= spec.window):
        return None
    apart = torch.arange(*seen, device=q.device)[None] - torch.arange(*rows, device=q.device)[:, None]
    if bias is None:
        added = torch.zeros(apart.shape, dtype=q.dtype, device=q.device)[None]
    else:
        added = bias[:, apart.clamp(-spec.reach, spec.reach) + spec.reach].to(q.dtype)
    return (added.masked_fill(apart.abs() >= spec.window, -torch.inf) if spec.window else added)[None]


def _relative_scores(q: Tensor, k: Tensor, spec: AttnSpec, places: RelativePositions) -> Tensor:
    """The term added to scores [1, heads, n, n] by distances. q and k [heads, n, D], of one sequence.

    Every query meets all 2n - 1 distances, and a key meets n: rows that each begin one further are a view with other strides.
    Nothing is gathered, and bits do not depend on the rest of the step."""
    heads, n, width = *q.shape[:2], 2 * q.shape[1] - 1
    apart = torch.arange(1 - n, n, device=q.device).clamp(-spec.reach, spec.reach)
    rows, total = places.row[apart + spec.reach] - places.first, torch.zeros((), dtype=q.dtype, device=q.device)
    if places.keys is not None:
        met = q @ places.keys[rows].permute(1, 2, 0)
        total = met.as_strided((heads, n, n), (n * width, width - 1, 1), n - 1)
    if places.queries is not None:
        met = k @ places.queries[rows.flip(0)].permute(1, 2, 0)
        total = total + met.as_strided((heads, n, n), (n * width, 1, width - 1), n - 1)
    return (total * spec.scale)[None]
