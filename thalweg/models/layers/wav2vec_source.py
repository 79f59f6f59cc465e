"""wav2vec 2.0 as the source of cross-attention. As `layers.speech`, one clip at a time."""

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
from thalweg.models.vision.wav2vec import Wav2VecEncoder

PAD = 1
"""Zeros on each side of a convolution behind the encoder."""


class Wav2VecSource:
    """features f32[N, 1, 1 + samples] -> the vectors of N sources."""

    def __init__(
        self, ctx: Context, spec: declared.Wav2VecSource, weights: Mapping[str, Any], block: Callable[..., Any]
    ) -> None:
        """block: unused, as its layers are of another kind."""
        self._spec, self._encoder = spec, Wav2VecEncoder(ctx, spec.encoder, weights["encoder"], block)
        own = {key: part for key, part in weights.items() if key != "encoder"}
        self._parts = BoundParts(ctx.of_encoder(), own, spec.encoder.norm(""))
        self.specs: dict[str, Any] = {**self._parts.specs, "encoder": self._encoder.specs}

    def __call__(self, p: Mapping[str, Any], features: Array) -> SourceVectors:
        counts = [int(n) for n in features[:, 0, 0].tolist()]
        result = [self._one(p, row[:, 1 : 1 + n]) for row, n in zip(features, counts, strict=True)]
        return SourceVectors(torch.cat(result), tuple(len(each) for each in result))

    def _one(self, p: Mapping[str, Any], samples: Array) -> Array:
        """samples f32[1, n] -> [sources, hidden]."""
        x = self._encoder.end(p["encoder"], self._encoder.encode(p["encoder"], samples)).T[None]
        for i in range(self._spec.convs):
            conv = p["convs"][i]
            x = functional.glu(functional.conv1d(x, conv["kernel"], conv["bias"], stride=self._spec.stride, padding=PAD), 1)
        x = x[0].T.contiguous()
        return self._parts.linear("/out", p["out"], x) if self._spec.projection else x
