"""The speech encoder of samples. As `layers.speech`, one clip at a time."""

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
from thalweg.models.layers.norm import build_norm
from thalweg.models.layers.rotary import cos_sin_table
from thalweg.models.layers.speech import whole_sequence
from thalweg.models.spec.waveform import CONVOLUTIONS
from thalweg.models.weights import ParamSpec, Weight

EPS = 1e-5
"""Of the group norm."""


class WaveformEncoder:
    """features f32[N, 1, 1 + samples] -> the vectors of N sources."""

    def __init__(
        self, ctx: Context, spec: declared.WaveformEncoder, weights: Mapping[str, Any], block: Callable[..., Any]
    ) -> None:
        """block: builder of a layer from its declaration."""
        self._spec, self._dtype = spec, getattr(torch, ctx.dtype)
        self._layers = [block(ctx, each, weights["layers"][i], [MixerRef(i, table=0)]) for i, each in enumerate(spec.layers)]
        self._norm = build_norm(ctx, spec.norm, weights["norm"])
        own = {name: weights[name] for name in ("conv1", "conv2", "conv3", "group_norm")}
        table = partial(cos_sin_table, dict(spec.rope.parameters), spec.rope.dim, spec.rope.trained, spec.sources)
        self.specs: dict[str, Any] = {
            **{name: {k: ParamSpec(w, ctx.dtype) for k, w in part.items()} for name, part in own.items()},
            "layers": {i: each.specs for i, each in enumerate(self._layers)},
            "norm": self._norm.specs,
            "rope": ParamSpec(Weight(()), "float32", make=table),
        }

    def __call__(self, p: Mapping[str, Any], features: Array) -> SourceVectors:
        counts = [int(n) for n in features[:, 0, 0].tolist()]
        result = [self._one(p, row[0, 1 : 1 + n]) for row, n in zip(features, counts, strict=True)]
        return SourceVectors(torch.cat(result), tuple(len(each) for each in result))

    def _one(self, p: Mapping[str, Any], samples: Array) -> Array:
        """samples f32[n] -> [sources, hidden]."""
        (_, first), *more = CONVOLUTIONS
        x = torch.tanh(functional.conv1d(samples.to(self._dtype)[None, None], p["conv1"]["weight"], stride=first))
        x = functional.group_norm(x, 1, p["group_norm"]["weight"], p["group_norm"]["bias"], EPS)
        for name, (_, stride) in zip(("conv2", "conv3"), more, strict=True):
            x = functional.gelu(functional.conv1d(x, p[name]["weight"], p[name]["bias"], stride=stride))
        x = x[0].T.contiguous()
        residual, flow = None, Flow(whole_sequence(len(x), x), [None] * len(self._layers), {0: p["rope"]})
        for i, layer in enumerate(self._layers):
            x, residual = layer(p["layers"][i], x, residual, flow)
        normed: Array = self._norm.add(p["norm"], x, residual)[0]
        return normed
