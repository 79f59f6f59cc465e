"""The encoder of SEW-D: that of SEW with disentangled attention."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from thalweg.hal.step import Array, Params
from thalweg.models import spec
from thalweg.models.vision.bound_parts import Parts
from thalweg.models.vision.wav2vec import Wav2VecEncoder

TERMS = 3
"""Of a score: query and key, query and distance, distance and key."""


class DisentangledClipEncoder(Wav2VecEncoder):
    spec: spec.DisentangledClipSpec

    def begin(self, params: Params, x: Array) -> Array:
        return x

    def read_places(self, params: Params, x: Array) -> tuple[Array, Array]:
        """(vectors of distances [2 * reach, hidden], the row of the distance from query to key i64[T, T])."""
        s, p = self.spec, params["far_norm"]
        place = torch.arange(len(x), device=x.device)
        apart = place[:, None] - place
        if s.buckets_each:
            apart = bucket(apart, s.buckets_each, s.longest)
        return functional.layer_norm(params["far"], (s.hidden,), p["scale"], p["shift"], s.eps), apart

    def _attend(self, at: str, p: Parts, x: Array, far: tuple[Array, Array]) -> Array:  # type: ignore[override]
        n, heads, (vectors, apart) = len(x), self.spec.heads, far
        q, k, v = self._parts.linear(f"{at}/qkv", p["qkv"], x).view(n, 3, heads, -1).permute(1, 2, 0, 3)
        result = self._parts.linear(f"{at}/qkv", p["qkv"], vectors).view(len(vectors), 3, heads, -1)
        far_q, far_k = result[:, :2].permute(1, 2, 0, 3)
        reach = self.spec.places_reach

        def row(distances: Array) -> Array:
            return (distances + reach).clamp(0, 2 * reach - 1).expand(heads, n, n)

        scale = 1 / math.sqrt(TERMS * q.shape[-1])
        seen = (q @ far_k.mT).gather(2, row(apart)) + (k @ far_q.mT).gather(2, row(-apart)).mT
        y = functional.scaled_dot_product_attention(q[None], k[None], v[None], (seen * scale)[None], scale=scale)
        return self._parts.linear(f"{at}/out", p["out"], y[0].transpose(0, 1).reshape(n, -1))


def bucket(apart: Array, buckets: int, longest: int) -> Array:
    """i64[T, T] of distances -> of buckets: distances up to half of the buckets, and logarithmic ones from there on."""
    middle = buckets // 2
    size = apart.abs().clamp(min=middle)
    late = (torch.log(size.float() / middle) / math.log((longest - 1) / middle) * (middle - 1)).ceil().long() + middle
    return torch.where(apart.abs() <= middle, apart, late * apart.sign())
