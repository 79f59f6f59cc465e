"""The gated memory unit of SambaY: a later layer's gate of an earlier layer's scan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.linear import Linear, RowLinear

OPEN = 16.0
"""A gate of the scan that multiplies its output by a power of two: silu(16) is 16 in float32, within 1 part in 8 million."""


class GatedMemory:
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: declared.GatedMemory, weights: Mapping[str, Any]) -> None:
        self._in, self._out = Linear(ctx, weights["gate"]), RowLinear(ctx, weights["out"])
        self._gate = ctx.bind(ops.act_and_mul, act="silu", size=self._in.outputs[0])
        self.specs: dict[str, Any] = {"gate": self._in.specs, "out": self._out.specs}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        assert flow.memory is not None
        gated = self._gate(torch.cat((self._in(p["gate"], x, flow), flow.memory), -1))
        return self._out(p["out"], gated, flow)
