"""Rotary position embedding (Su et al. 2021). Tables come ready made. The model does frequency scaling."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op


def _rope_sample(dim: int, rotary_dim: int, interleaved: bool) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        q, k = (rng.normal(size=(6, h, dim)).astype(np.float16) for h in (4, 2))
        positions = rng.integers(0, 32, 6).astype(np.int32)
        angle = np.arange(32)[:, None] / 10000 ** (np.arange(rotary_dim // 2)[None] * 2 / rotary_dim)
        return q, k, positions, np.concatenate([np.cos(angle), np.sin(angle)], 1).astype(np.float32)

    return Sample(
        f"{rotary_dim}of{dim}{'-interleaved' if interleaved else ''}",
        make,
        {"rotary_dim": rotary_dim, "interleaved": interleaved},
    )


@op(
    samples=[_rope_sample(32, 32, False), _rope_sample(32, 16, False), _rope_sample(32, 32, True)],
    tolerances={"float32": 1e-6, "bfloat16": 1e-2},
)
def rope(
    q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, *, rotary_dim: int, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Rotate the first rotary_dim of every head by its token's angles.

    q [T, Hq, D], k [T, Hk, D], positions i32[T], cos_sin f32[L, rotary_dim] (cosines, then sines, rotary_dim / 2
    each) -> (q, k). Pairs are (i, i + rotary_dim / 2), or interleaved (2i, 2i + 1). Cosine and sine are rounded to
    q.dtype before they multiply, as the published implementations do.
    """
    cos, sin = cos_sin[positions.long()].to(q.dtype).unsqueeze(1).chunk(2, -1)
    return _rotate(q, cos, sin, rotary_dim, interleaved), _rotate(k, cos, sin, rotary_dim, interleaved)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, rotary_dim: int, interleaved: bool) -> Tensor:
    turn, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    if interleaved:
        a, b = turn[..., 0::2], turn[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = turn.chunk(2, -1)
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return torch.cat([turned, rest], -1) if rest.shape[-1] else turned
