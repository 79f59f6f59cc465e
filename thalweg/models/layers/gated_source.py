"""The speech encoder with gated convolutions. As `layers.speech`, one clip at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef, SourceVectors
from thalweg.models.layers.embedding import sine_table
from thalweg.models.layers.norm import build_norm
from thalweg.models.layers.speech import whole_sequence
from thalweg.models.spec.speech import STRIDE
from thalweg.models.weights import ParamSpec, Weight


class GatedSource:
    """features f32[N, bins, 1 + frames] -> the vectors of N sources."""

    def __init__(self, ctx: Context, spec: declared.GatedSource, weights: Mapping[str, Any], block: Callable[..., Any]) -> None:
        """block: builder of a layer from its declaration."""
        self._spec, self._dtype = spec, getattr(torch, ctx.dtype)
        self._layers = [block(ctx, each, weights["layers"][i], [MixerRef(i)]) for i, each in enumerate(spec.layers)]
        self._norm = build_norm(ctx, spec.norm, weights["norm"])
        self.specs: dict[str, Any] = {
            "convs": {i: {key: ParamSpec(w, ctx.dtype) for key, w in part.items()} for i, part in weights["convs"].items()},
            "positions": ParamSpec(Weight(()), ctx.dtype, make=partial(_positions, spec, self._dtype)),
            "layers": {i: each.specs for i, each in enumerate(self._layers)},
            "norm": self._norm.specs,
        }

    def __call__(self, p: Mapping[str, Any], features: Array) -> SourceVectors:
        counts = [int(n) for n in features[:, 0, 0].tolist()]
        result = [self._one(p, row[:, 1 : 1 + n]) for row, n in zip(features, counts, strict=True)]
        return SourceVectors(torch.cat(result), tuple(len(each) for each in result))

    def _one(self, p: Mapping[str, Any], mel: Array) -> Array:
        """mel f32[bins, frames] -> [sources, hidden]."""
        x = mel.to(self._dtype)[None]
        for i, taps in enumerate(self._spec.taps):
            conv = p["convs"][i]
            x = functional.glu(functional.conv1d(x, conv["weight"], conv["bias"], stride=STRIDE, padding=taps // 2), 1)
        x = x[0].T.contiguous() * self._spec.scale
        x = x + p["positions"][: len(x)]
        residual, flow = None, Flow(whole_sequence(len(x), x), [None] * len(self._layers), {})
        for i, layer in enumerate(self._layers):
            x, residual = layer(p["layers"][i], x, residual, flow)
        normed: Array = self._norm.add(p["norm"], x, residual)[0]
        return normed


def _positions(spec: declared.GatedSource, dtype: torch.dtype) -> torch.Tensor:
    return sine_table(spec.first + spec.sources, spec.hidden, spec.hidden // 2 - 1, dtype)[spec.first :]
