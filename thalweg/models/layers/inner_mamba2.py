"""Mamba-2 with projections between the convolution and the recurrence. The state of a sequence is in the block of the group's
table. It is passed through, never kept."""

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
from thalweg.models.layers.recurrent import advance
from thalweg.models.weights import ParamSpec


class InnerMamba2:
    """x [T, hidden] -> [T, hidden]. Divided among ranks by heads. All heads share B and C."""

    backend = None
    """It attends to nothing, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: declared.InnerMamba2, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._sizes, self._head_dim = place, spec.parts, spec.head_dim
        heads = ctx.share(spec.heads, "heads of a Mamba-2 layer")
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        self._in, self._step = Linear(ctx, weights["in"]), Linear(ctx, weights["step"])
        self._chosen, self._out = RowLinear(ctx, weights["chosen"]), RowLinear(ctx, weights["out"])
        self._conv = CausalConv(ctx, weights["conv"], "silu")
        self._norms = [ctx.bind(ops.rms_norm, size=n, eps=spec.eps) for n in self._sizes]
        self._scan = ctx.bind(
            ops.ssd_scan, heads=heads, groups=1, head_dim=spec.head_dim, state=spec.state, low=0.0, high=float("inf")
        )
        self._gate = ctx.bind(ops.act_and_mul, act="silu", size=heads * spec.head_dim)
        parts: dict[str, Any] = {
            "in": self._in,
            "conv": self._conv,
            "chosen": self._chosen,
            "step": self._step,
            "out": self._out,
        }
        self.specs: dict[str, Any] = {
            **{key: part.specs for key, part in parts.items()},
            "norms": {i: ParamSpec(w, ctx.dtype) for i, w in weights["norms"].items()},
            "rate": {name: ParamSpec(w, w.dtype) for name, w in weights["rate"].items()},
        }

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        rate = p["rate"]
        gate, x = self._in(p["in"], x, flow).split(self._in.outputs, dim=-1)
        x = self._conv(p["conv"], x.contiguous(), flow, self._place)
        parts = self._chosen(p["chosen"], x, flow).split(self._sizes, dim=-1)
        b, c, low = (
            norm(part.contiguous(), p["norms"][i]) for i, (norm, part) in enumerate(zip(self._norms, parts, strict=True))
        )
        step = self._step(p["step"], low, flow)
        heads = x.unflatten(-1, (-1, self._head_dim))
        scan = partial(self._scan, heads, step, b.unsqueeze(1), c.unsqueeze(1), rate["log"], rate["bias"], rate["skip"])
        out = advance(flow, self._place, 1, scan).flatten(-2)
        return self._out(p["out"], self._gate(torch.cat((gate, out), -1)), flow)
