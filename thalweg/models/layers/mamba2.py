"""Mamba-2: one projection, a short convolution, the recurrence of state-space duality, a gated norm. The state of a sequence is
in the block of the group's table; it is passed through, never kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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


class Mamba2:
    """x [T, hidden] -> [T, hidden]. Divided among ranks by groups of heads. Ranks that share a group gather it for the norm."""

    backend = None
    """It attends to nothing, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: declared.Mamba2, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._dims = place, (spec.head_dim, spec.state)
        groups = ctx.share_heads(spec.groups, "groups of a Mamba-2 layer")
        heads = ctx.share(spec.heads, "heads of a Mamba-2 layer")
        self._scales = spec.scales if any(by != 1 for by in spec.scales) else ()
        self._parts = spec.parts_of_rank(ctx.mesh.tensor.size)
        self._comm, norm = ctx.mesh.tensor, {}
        self._spans = spec.groups < ctx.mesh.tensor.size
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        self._in = Linear(ctx, weights["in"])
        self._conv = CausalConv(ctx, weights["conv"], spec.act)
        self._scan = ctx.bind(
            ops.ssd_scan, heads=heads, groups=groups, head_dim=spec.head_dim, state=spec.state, low=spec.limits[0],
            high=spec.limits[1],
        )  # fmt: skip
        self._normed = spec.norm
        if spec.norm:
            first = {"norm_first": True} if spec.norm_first else {}
            size, groups = (spec.inner, spec.groups) if self._spans else (self._parts[0], groups)
            self._gate = ctx.bind(ops.gated_group_norm, size=size, groups=groups, eps=spec.eps, **first)
            weight = weights["norm"]["weight"]
            norm = {"weight": ParamSpec(replace(weight, shard=None) if self._spans else weight, ctx.dtype)}
        else:
            self._gate = ctx.bind(ops.act_and_mul, act="silu", size=self._parts[0])
        self._out = RowLinear(ctx, weights["out"])
        self.specs: dict[str, Any] = {
            "in": self._in.specs,
            "conv": self._conv.specs,
            "rate": {name: ParamSpec(w, w.dtype) for name, w in weights["rate"].items()},
            "norm": norm,
            "out": self._out.specs,
        }

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        rate, (head_dim, state) = p["rate"], self._dims
        projected = self._in(p["in"], x, flow)
        if self._scales:
            parts = projected.split(self._in.outputs, dim=-1)
            projected = torch.cat([part * by for part, by in zip(parts, self._scales, strict=True)], -1)
        gate, xbc, step = projected.split((self._parts[0], sum(self._parts), self._in.outputs[-1]), dim=-1)
        xbc = self._conv(p["conv"], xbc, flow, self._place)
        x, b, c = (
            t.unflatten(-1, (-1, n)) for t, n in zip(xbc.split(self._parts, dim=-1), (head_dim, state, state), strict=True)
        )
        out = advance(flow, self._place, 1, partial(self._scan, x, step, b, c, rate["log"], rate["bias"], rate["skip"]))
        out = out.flatten(-2)
        if not self._normed:
            out = self._gate(torch.cat((gate, out), -1))
        elif self._spans:
            whole = self._gate(self._comm.all_gather(out), self._comm.all_gather(gate.contiguous()), p["norm"]["weight"])
            out = self._comm.part(whole).contiguous()
        else:
            out = self._gate(out, gate, p["norm"]["weight"])
        return self._out(p["out"], out, flow)
