"""The gated MLP: down(act(gate(x)) * up(x)) (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.ops.activation import CLAMP, CUT, glu, is_gate
from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.spec import MLP


class GatedMLP:
    """x [T, hidden] -> [T, hidden]. gate and up are one product."""

    def __init__(self, ctx: Context, spec: MLP, weights: Mapping[str, Any]) -> None:
        self._in, self._scale = Linear(ctx, weights["gate_up"]), spec.gate_scale
        act = f"{CUT}{spec.cut:g}" if spec.cut else f"{CLAMP}{spec.clamp:g}" if spec.clamp else spec.act
        self._act: Any = partial(_activate, act)
        if is_gate(act):
            self._act = ctx.bind(ops.act_and_mul, act=act, size=self._in.outputs[0])
        self._out = RowLinear(ctx, weights["down"])
        self._joined = self._out.offer(ctx, ops.act_and_mul_linear, gate=act) if is_gate(act) else None
        self.entry = ("gate_up", self._in)
        """The only reader of its input (`joined.NormedPart`)."""
        self.specs = {"gate_up": self._in.specs, "down": self._out.specs}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        return self.finish(p, self._in(p["gate_up"], x, flow), flow)

    def finish(self, p: Mapping[str, Any], both: Array, flow: Flow) -> Array:
        """The layer after its first product, gate and up [T, 2 * inner] -> [T, hidden]."""
        if self._scale != 1.0:
            gate, up = both.chunk(2, -1)
            both = torch.cat((gate * self._scale, up), -1)
        if self._joined is not None:
            return self._out(p["down"], both, flow, product=self._joined)
        return self._out(p["down"], self._act(both), flow)


def _activate(act: str, both: Array) -> Array:
    """`glu` of gate and up, in torch's operations: few layers have an act without a kernel."""
    gate, up = both.chunk(2, -1)
    return glu(gate, up, act)
