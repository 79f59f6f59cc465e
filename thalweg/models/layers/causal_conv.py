"""The short convolution that recurrent layers begin with, on the cache of its last inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.recurrent import advance
from thalweg.models.weights import ParamSpec


class CausalConv:
    """x [T, channels] -> y [T, channels], from the first array of the layer's cache."""

    def __init__(self, ctx: Context, weights: Mapping[str, Any], act: str) -> None:
        channels, _, taps = weights["weight"].shape(ctx.mesh.tensor.size)
        biased = {"biased": True} if "bias" in weights else {}
        self._conv = ctx.bind(ops.causal_conv, act=act, channels=channels, taps=taps, **biased)
        self.specs = {name: ParamSpec(w, ctx.dtype) for name, w in weights.items()}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow, place: MixerRef) -> Array:
        bias = [p["bias"]] if "bias" in p else []
        return advance(flow, place, 0, lambda held, *rows: self._conv(x, p["weight"], held, *rows, *bias))
