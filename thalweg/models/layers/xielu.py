"""The feed-forward part of Apertus, with two learned numbers in its activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.weights import ParamSpec

BETA, EPS = 0.5, -1e-6
"""The slope at 0, and where the exponential begins, as published."""


class XieluMLP:
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: declared.XieluMLP, weights: Mapping[str, Any]) -> None:
        self._up, self._down = Linear(ctx, weights["up"]), RowLinear(ctx, weights["down"])
        act = {key: ParamSpec(w, "float32") for key, w in weights["act"].items()}
        self.specs = {"up": self._up.specs, "down": self._down.specs, "act": act}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        return self._down(p["down"], xielu(self._up(p["up"], x, flow), p["act"]["p"], p["act"]["n"]), flow)


def xielu(x: Array, positive: Array, negative: Array) -> Array:
    """Above 0 a * x^2 + BETA * x with a = softplus(positive), else b * (e^x - 1 - x) + BETA * x with b = BETA +
    softplus(negative) (arXiv 2411.13010, 4), in float32."""
    wide = x.to(torch.float32)
    a, b = torch.nn.functional.softplus(positive), BETA + torch.nn.functional.softplus(negative)
    curved = torch.where(wide > 0, a * wide * wide, b * (torch.expm1(wide.clamp(max=EPS)) - wide))
    return (curved + BETA * wide).to(x.dtype)
