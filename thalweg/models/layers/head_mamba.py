"""Mamba with several heads. The state of a sequence is in the block of the group's table. It is passed through, never kept."""

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
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.recurrent import advance
from thalweg.models.weights import ParamSpec


class HeadMamba:
    """x [T, hidden] -> [T, hidden]. Not divided among ranks."""

    backend = None
    """It attends to nothing, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: declared.HeadMamba, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._heads, self._sizes = place, spec.heads, (spec.rank, spec.state, spec.state)
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        self._in, self._out = Linear(ctx, weights["in"]), Linear(ctx, weights["out"])
        self._conv = CausalConv(ctx, weights["conv"], spec.act)
        bind = partial(ctx.bind, ops.head_linear, turned=False, heads=spec.heads)
        self._chosen = bind(in_features=spec.head_dim, out_features=sum(self._sizes))
        self._step = bind(in_features=spec.rank, out_features=spec.head_dim)
        self._scan = ctx.bind(ops.selective_scan, channels=spec.head_dim, state=spec.state)
        self.specs: dict[str, Any] = {
            "in": self._in.specs, "conv": self._conv.specs, "out": self._out.specs,
            **{key: ParamSpec(weights[key], ctx.dtype, op.pack, matrices=spec.heads)
               for key, op in (("chosen", self._chosen), ("step", self._step))},
            "rate": {name: ParamSpec(w, w.dtype) for name, w in weights["rate"].items()},
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        x, gate = self._in(p["in"], x, flow).split(self._in.outputs, dim=-1)
        x = self._conv(p["conv"], x.contiguous(), flow, self._place).unflatten(-1, (self._heads, -1))
        low, b, c = self._chosen(x, p["chosen"]).split(self._sizes, dim=-1)
        step, gate, rate = self._step(low.contiguous(), p["step"]), gate.unflatten(-1, (self._heads, -1)), p["rate"]
        parts = []
        for h in range(self._heads):
            rows = (each[:, h].contiguous() for each in (x, step, b, c, gate))
            scan = partial(self._scan, *rows, rate["log"][h], rate["bias"][h], rate["skip"][h])
            parts.append(advance(flow, self._place, 1 + h, scan))
        return self._out(p["out"], torch.cat(parts, -1), flow)
