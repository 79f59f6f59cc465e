"""FastConformer as the source of cross-attention. As `layers.speech`, one clip at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from thalweg.hal.comm import Mesh
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import SourceVectors
from thalweg.models.layers.linear import Linear
from thalweg.models.vision.fastconformer import FastConformer


class ConformerSource:
    """features f32[N, bins, 1 + frames] -> the vectors of N sources."""

    def __init__(
        self, ctx: Context, spec: declared.ConformerSource, weights: Mapping[str, Any], block: Callable[..., Any]
    ) -> None:
        """block: builder of a layer from its declaration."""
        self._encoder = FastConformer(ctx, spec.encoder, weights["encoder"], block)
        self.specs: dict[str, Any] = {"encoder": self._encoder.specs}
        self._out = Linear(replace(ctx, mesh=Mesh()), weights["out"]) if spec.projection else None
        if self._out is not None:
            self.specs["out"] = self._out.specs

    def __call__(self, p: Mapping[str, Any], features: Array) -> SourceVectors:
        counts = [int(n) for n in features[:, 0, 0].tolist()]
        result = [self._one(p, row[:, 1 : 1 + n]) for row, n in zip(features, counts, strict=True)]
        return SourceVectors(torch.cat(result), tuple(len(each) for each in result))

    def _one(self, p: Mapping[str, Any], mel: Array) -> Array:
        """mel f32[bins, frames] -> [T, hidden]."""
        x = self._encoder.encode(p["encoder"], mel)
        if self._out is None:
            return x
        result: Array = self._out(p["out"], x, None)
        return result
