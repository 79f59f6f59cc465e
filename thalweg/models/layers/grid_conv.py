"""A convolution over patches between two gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.weights import ParamSpec


class GridConv:
    """x [T, hidden] -> [T, hidden]."""

    backend = None
    """It attends to nothing, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: declared.GridConv, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._in, self._out = Linear(ctx, weights["in"]), RowLinear(ctx, weights["out"])
        self.specs: dict[str, Any] = {
            "in": self._in.specs,
            "out": self._out.specs,
            "conv": {"weight": ParamSpec(weights["conv"]["weight"], ctx.dtype)},
        }

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        assert flow.near is not None
        at, there = flow.near
        b, c, x = self._in(p["in"], x, flow).split(self._in.outputs, dim=-1)
        gated, kernel = b * x, p["conv"]["weight"]
        y = torch.zeros_like(gated, dtype=torch.float32)
        for i in range(kernel.shape[1]):
            y = y + gated.index_select(0, at[:, i]) * kernel[:, i].float() * there[:, i : i + 1]
        return self._out(p["out"], c * y.to(c.dtype), flow)
