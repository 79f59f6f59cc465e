"""The real-gated linear recurrent unit (RG-LRU) in its block. The state of a sequence is in the block of the group's table. It
is passed through, never kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.ops.conv import NONE
from thalweg.hal.ops.pointwise import exponential, sigmoid, softplus
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.causal_conv import CausalConv
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.layers.recurrent import advance
from thalweg.models.weights import ParamSpec

DECAY = 8.0
"""Of the logarithm of the decay, where its gate is open (the paper's c)."""


class GatedRecurrence:
    """x [T, hidden] -> [T, hidden]. Not divided among ranks."""

    backend = None
    """It attends to nothing, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: declared.GatedRecurrence, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._heads, n = place, spec.heads, spec.inner
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        self._in, self._out = Linear(ctx, weights["in"]), RowLinear(ctx, weights["out"])
        self._conv = CausalConv(ctx, weights["conv"], NONE)
        self._act = ctx.bind(ops.activation, act=spec.act, size=n)
        size = n // spec.heads
        self._gate = ctx.bind(ops.head_linear, turned=True, heads=spec.heads, in_features=size, out_features=size)
        self._scan = ctx.bind(ops.linear_scan, channels=n)
        gates = {
            key: {
                "weight": ParamSpec(weights[key]["weight"], ctx.dtype, self._gate.pack, matrices=spec.heads),
                "bias": ParamSpec(weights[key]["bias"], ctx.dtype),
            }
            for key in ("input_gate", "decay_gate")
        }
        self.specs: dict[str, Any] = {
            "in": self._in.specs, "conv": self._conv.specs, **gates, "rate": ParamSpec(weights["rate"], "float32"),
            "out": self._out.specs,
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        x, gate = self._in(p["in"], x, flow).split(self._in.outputs, dim=-1)
        x = self._conv(p["conv"], x.contiguous(), flow, self._place)
        taken, kept = (self._gate_of(p[key], x) for key in ("input_gate", "decay_gate"))
        log_decay = -DECAY * kept * softplus(p["rate"])
        scale = torch.sqrt(1 - torch.exp(2 * log_decay))  # so that the state's variance is that of its inputs
        scale = torch.where((flow.batch.positions == 0)[:, None], 1.0, scale)
        scan = partial(self._scan, x.to(torch.float32) * taken * scale, exponential(log_decay))
        out = advance(flow, self._place, 1, scan).to(x.dtype)
        return self._out(p["out"], out * self._act(gate.contiguous()), flow)

    def _gate_of(self, p: Mapping[str, Any], x: Array) -> Array:
        """f32[T, channels], from 0 to 1."""
        found = self._gate(x.unflatten(-1, (self._heads, -1)), p["weight"]) + p["bias"]
        return sigmoid(found.flatten(1).to(torch.float32))
