"""Attention with a learned logit of each distance, which depends on the query (Inkling)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.indexer import GATHER

_TABLE = np.array([[2, 5, 1], [4, 3, 0]], np.int32)


def _sample(name: str, heads: int, kv_heads: int, reach: int, window: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        q, near = rng.normal(size=(3, heads, 16)), rng.normal(size=(3, heads, 4))
        keys, values = (rng.normal(size=(6, 4, kv_heads * 16)) for _ in range(2))
        arrays = (a.astype(np.float16) for a in (q, near, rng.normal(size=(4, reach)), keys, values))
        return *arrays, _TABLE, np.array([0, 1, 1], np.int32), np.array([9, 6, 0], np.int32)

    return Sample(name, make, {"scale": 0.25, "window": window})


@op(
    samples=[_sample("all", 4, 2, 6, 0), _sample("window", 3, 3, 5, 5)],
    tolerances={"float32": 1e-5, "bfloat16": 1e-2},
)  # fmt: skip
def distance_attention(
    q: Tensor, near: Tensor, profiles: Tensor, keys: Tensor, values: Tensor, table: Tensor, seq: Tensor, positions: Tensor, *,
    scale: float, window: int,
) -> Tensor:  # fmt: skip
    """softmax(q k^T * scale + logits) v over the tokens of a sequence up to the query's: q [N, H, D], near [N, H, R], profiles
    [R, E], keys and values [blocks, n, G * D] of G heads, each for H / G of q, table i32[S, B], seq and positions i32[N] ->
    [N, H, D]. The logit of a key that is d < E tokens before is near . profiles[:, d], and 0 beyond. window: only the last so
    many tokens; 0: all. In float64, so that a token does not depend on the rest of the batch."""
    size, parts, wide = keys.shape[1], [], torch.float64
    groups, reach, dim = keys.shape[2] // q.shape[2], profiles.shape[1], q.shape[2]
    back = torch.arange(-window + 1, 1, device=q.device) if window else None
    every = torch.arange(table.shape[1] * size, device=q.device)
    most = max(1, GATHER // ((window or table.shape[1] * size) * keys.shape[2]))
    for rows, own, of, here in zip(*(torch.split(x, most) for x in (q, near, seq, positions)), strict=True):
        now = here[:, None].long()
        at = now + back if back is not None else every.expand(rows.shape[0], -1)
        hidden, there = (at < 0) | (at > now), at.clamp(min=0)
        column = torch.div(there, size, rounding_mode="floor").clamp(max=table.shape[1] - 1)
        block = table[of.long()].long().gather(1, column)
        k, v = (
            torch.where(hidden[..., None], 0, held[block, there % size].to(wide)).view(*at.shape, groups, dim)
            for held in (keys, values)
        )
        apart = now - at
        logits = torch.einsum("nhr,re->nhe", own.to(wide), profiles.to(wide))
        picked = logits.gather(2, apart.clamp(0, reach - 1)[:, None].expand(-1, q.shape[1], -1))
        picked = torch.where((apart < reach)[:, None], picked, 0)
        grouped = rows.to(wide).view(rows.shape[0], groups, -1, dim)
        scores = torch.einsum("nghd,nkgd->nghk", grouped, k).flatten(1, 2) * scale + picked
        weights = torch.softmax(scores.masked_fill(hidden[:, None], -torch.inf), -1)
        weights = weights.view(rows.shape[0], groups, -1, at.shape[1])
        parts.append(torch.einsum("nghk,nkgd->nghd", weights, v).flatten(1, 2).to(q.dtype))
    return torch.cat(parts)
