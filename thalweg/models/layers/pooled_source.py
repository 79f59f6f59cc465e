"""Conformer layers and an adapter as the source of cross-attention. As `layers.speech`, one clip at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import SourceVectors
from thalweg.models.vision.bound_parts import BoundParts
from thalweg.models.vision.conformer_layer import ConformerLayers
from thalweg.models.vision.entrances import project_frames
from thalweg.models.vision.pooling_adapter import pool_states


class PooledSource:
    """features f32[N, bins, 1 + frames] -> the vectors of N sources."""

    def __init__(
        self, ctx: Context, spec: declared.PooledSource, weights: Mapping[str, Any], block: Callable[..., Any]
    ) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self._spec, self._dtype = spec, getattr(torch, ctx.dtype)
        self._parts = BoundParts(ctx, weights, spec.conformer.norm(""))
        self._layers = ConformerLayers(spec.conformer, self._parts)
        self.specs: dict[str, Any] = self._parts.specs

    def __call__(self, p: Mapping[str, Any], features: Array) -> SourceVectors:
        counts = [int(n) for n in features[:, 0, 0].tolist()]
        result = [self._one(p, row[:, 1 : 1 + n]) for row, n in zip(features, counts, strict=True)]
        return SourceVectors(torch.cat(result), tuple(len(each) for each in result))

    def _one(self, p: Mapping[str, Any], frames: Array) -> Array:
        """frames f32[bins, T] -> [sources, hidden]."""
        s = self._spec
        x = project_frames(s.entrance, self._parts, p, frames.to(self._dtype))
        places = self._layers.read_places(x)
        for i in range(s.depth):
            x = self._layers.run(i, p["layers"][i], x, places)
        x = self._parts.norm("/last", p["last"], x)
        x = x + 0.5 * self._parts.linear("/down", p["down"], functional.relu(self._parts.linear("/up", p["up"], x)))
        if s.adapter is not None:
            x = pool_states(s.adapter, self._parts, p["adapter"], x)
        return self._parts.norm("/norm", p["norm"], x)
