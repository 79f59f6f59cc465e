"""Mamba: projections, a short convolution, a selective scan with input-dependent steps. The state of a sequence is in the block
of the group's table; it is passed through, never kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.causal_conv import CausalConv
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.layers.memory_gate import OPEN
from thalweg.models.layers.recurrent import advance
from thalweg.models.weights import ParamSpec


class Mamba:
    """x [T, hidden] -> [T, hidden]. Divided among ranks by channels."""

    backend = None
    """It attends to nothing, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: declared.Mamba, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._sizes = place, spec.norm_sizes
        inner = ctx.share(spec.inner, "channels of a Mamba layer")
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        self._in = Linear(ctx, weights["in"])
        self._conv = CausalConv(ctx, weights["conv"], spec.act)
        self._chosen = RowLinear(ctx, weights["chosen"])
        self._step = Linear(ctx, weights["step"])
        self._norms = [ctx.bind(ops.rms_norm, size=n, eps=spec.eps) for n in self._sizes] if spec.norms else []
        self._scan = ctx.bind(ops.selective_scan, channels=inner, state=spec.state)
        self._out = RowLinear(ctx, weights["out"])
        self._gate = ctx.bind(ops.act_and_mul, act="silu", size=inner) if spec.remembered else None
        self.specs: dict[str, Any] = {
            "in": self._in.specs,
            "conv": self._conv.specs,
            "chosen": self._chosen.specs,
            "norms": {i: {"weight": ParamSpec(w["weight"], ctx.dtype)} for i, w in weights["norms"].items()},
            "step": self._step.specs,
            "rate": {name: ParamSpec(w, w.dtype) for name, w in weights["rate"].items()},
            "out": self._out.specs,
        }

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        rate = p["rate"]
        x, gate = self._in(p["in"], x, flow).split(self._in.outputs, dim=-1)
        x = self._conv(p["conv"], x, flow, self._place)
        step, b, c = self._chosen(p["chosen"], x, flow).split(self._sizes, dim=-1)
        if self._norms:
            step, b, c = (self._normalize(p.get("norms", {}), i, t) for i, t in enumerate((step, b, c)))
        step = self._step(p["step"], step, flow)
        scanned = gate if self._gate is None else torch.full_like(gate, OPEN)
        scan = partial(self._scan, x, step, b, c, scanned, rate["log"], rate["bias"], rate["skip"])
        out = advance(flow, self._place, 1, scan)
        if self._gate is not None:
            flow.memory = out / OPEN
            out = self._gate(torch.cat((gate, flow.memory), -1))
        return self._out(p["out"], out, flow)

    def _normalize(self, p: Mapping[int, Any], i: int, x: Array) -> Array:
        weight = p[i]["weight"] if i in p else x.new_ones(self._sizes[i])
        normed: Array = self._norms[i](x, weight)
        return normed
