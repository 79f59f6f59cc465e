"""A short convolution between two gates. Its last inputs are the whole state of a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.hal.ops.conv import NONE
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.causal_conv import CausalConv
from thalweg.models.layers.linear import Linear, RowLinear


class ShortConv:
    """x [T, hidden] -> [T, hidden]. Divided among ranks by channels."""

    backend = None
    """It attends to nothing, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: declared.ShortConv, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place = place
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        self._in = Linear(ctx, weights["in"])
        self._conv = CausalConv(ctx, weights["conv"], NONE)
        self._out = RowLinear(ctx, weights["out"])
        self.specs: dict[str, Any] = {"in": self._in.specs, "conv": self._conv.specs, "out": self._out.specs}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        b, c, x = self._in(p["in"], x, flow).split(self._in.outputs, dim=-1)
        y = self._conv(p["conv"], b * x, flow, self._place)
        return self._out(p["out"], c * y, flow)
