"""The feed-forward part with PolyNorm. It is not divided among ranks: its norms are over all inner values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.linear import Linear
from thalweg.models.weights import ParamSpec

EPS = 1e-6
"""As published."""


class PolyNormMLP:
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: declared.PolyNormMLP, weights: Mapping[str, Any]) -> None:
        self._gate_up, self._down = Linear(ctx, weights["gate_up"]), Linear(ctx, weights["down"])
        act = {key: ParamSpec(w, "float32") for key, w in weights["act"].items()}
        self.specs = {"gate_up": self._gate_up.specs, "down": self._down.specs, "act": act}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        gate, up = self._gate_up(p["gate_up"], x, flow).split(self._gate_up.outputs, dim=-1)
        return self._down(p["down"], poly_norm(gate, p["act"]["weight"], p["act"]["bias"]) * up, flow)


def poly_norm(x: Array, weight: Array, bias: Array) -> Array:
    """weight[0] n(x^3) + weight[1] n(x^2) + weight[2] n(x) + bias, n(z) = z / sqrt(mean(z^2) + EPS), in float32."""
    wide = x.to(torch.float32)
    square = wide * wide
    total = bias
    for power, by in zip((square * wide, square, wide), weight.unbind(0), strict=True):
        total = total + by * power * torch.rsqrt((power * power).mean(-1, keepdim=True) + EPS)
    return total.to(x.dtype)
