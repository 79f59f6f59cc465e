"""The speech encoder. It runs within the first step of a sequence, one clip at a time, so that a step's memory does not grow
with the number of starting sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.step import Array, SamplingArrays, StepBatch
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef, SourceVectors
from thalweg.models.layers.norm import build_norm
from thalweg.models.spec.speech import STRIDE
from thalweg.models.vision.activation import activate_clip
from thalweg.models.weights import ParamSpec


class SpeechEncoder:
    """mel f32[N, bins, frames] -> the vectors of N sources, equally many of each."""

    def __init__(
        self, ctx: Context, spec: declared.SpeechEncoder, weights: Mapping[str, Any], block: Callable[..., Any]
    ) -> None:
        """block: builder of a layer from its declaration (`decoder.Block`)."""
        self._spec, self._dtype = spec, getattr(torch, ctx.dtype)
        self._layers = [block(ctx, each, weights["layers"][i], [MixerRef(i)]) for i, each in enumerate(spec.layers)]
        self._norm = build_norm(ctx, spec.norm, weights["norm"])
        own = {name: weights[name] for name in ("conv1", "conv2", "positions")}
        self.specs: dict[str, Any] = {
            **{name: {k: ParamSpec(w, ctx.dtype) for k, w in part.items()} for name, part in own.items()},
            "layers": {i: each.specs for i, each in enumerate(self._layers)},
            "norm": self._norm.specs,
        }

    def __call__(self, p: Mapping[str, Any], mel: Array) -> SourceVectors:
        return SourceVectors(torch.cat([self._one(p, each) for each in mel.unbind(0)]), (self._spec.sources,) * mel.shape[0])

    def _one(self, p: Mapping[str, Any], mel: Array) -> Array:
        """mel [bins, frames] -> [sources, hidden]."""
        x = mel.to(self._dtype)[None]
        for name, stride in (("conv1", 1), ("conv2", STRIDE)):
            x = activate_clip(
                functional.conv1d(x, p[name]["weight"], p[name]["bias"], stride=stride, padding=1), self._spec.act
            )
        x = x[0].T.contiguous() + p["positions"]["weight"]
        residual, flow = None, Flow(whole_sequence(self._spec.sources, x), [None] * len(self._layers), {})
        for i, layer in enumerate(self._layers):
            x, residual = layer(p["layers"][i], x, residual, flow)
        normed: Array = self._norm.add(p["norm"], x, residual)[0]
        return normed


def whole_sequence(n: int, x: Array) -> StepBatch:
    """One sequence of n tokens, all of them new, as a step."""

    def of(*values: int) -> Array:
        return torch.tensor(values, dtype=torch.int32, device=x.device)

    each = torch.arange(n, dtype=torch.int32, device=x.device)
    return StepBatch(
        tokens=each, token_seq=torch.zeros_like(each), positions=each, slots=of(1), context=of(0), query=of(n),
        last_row=of(n - 1), emit=of(0).to(torch.bool), block_tables=(), sampling=SamplingArrays.greedy(1),
    )  # fmt: skip
