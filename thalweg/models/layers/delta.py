"""The gated delta net: projections, short convolutions, the delta rule, a gated norm of every head. The state of a sequence
is in the block of the group's table; it is passed through, never kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.layers.norm import norm_facts
from thalweg.models.layers.recurrent import advance
from thalweg.models.spec import DeltaNet
from thalweg.models.weights import ParamSpec


class GatedDeltaNet:
    """x [T, hidden] -> [T, hidden]. Divided among ranks by key heads."""

    backend = None
    """It attends to nothing, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: DeltaNet, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._grouped, self._dims = place, spec.grouped, (spec.key_dim, spec.value_dim)
        self._most = spec.most
        self._groups = ctx.share(spec.key_heads, "key heads of a delta net")
        heads = ctx.share(spec.value_heads, "value heads of a delta net")
        self._parts = tuple(n // ctx.mesh.tensor.size for n in spec.parts)
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        self._in = Linear(ctx, weights["in"])
        self._conv = ctx.bind(ops.causal_conv, act=spec.act, channels=sum(self._parts), taps=spec.kernel)
        self._gates = ctx.bind(ops.delta_gates, heads=heads)
        self._rule = ctx.bind(
            ops.delta_rule, keys=self._groups, heads=heads, key_dim=spec.key_dim, value_dim=spec.value_dim
        )  # fmt: skip
        self._norm = ctx.bind(ops.gated_rms_norm, size=spec.value_dim, eps=spec.eps)
        self._apart = None
        if spec.gate == "sigmoid":
            self._apart = (
                ctx.bind(ops.rms_norm, size=spec.value_dim, **norm_facts(spec.eps, spec.norm_offset)),
                ctx.bind(ops.sigmoid_mul, size=spec.value_dim),
            )
        self._out = RowLinear(ctx, weights["out"])
        self.specs: dict[str, Any] = {
            "in": self._in.specs,
            "conv": {"weight": ParamSpec(weights["conv"]["weight"], ctx.dtype)},
            "rate": {name: ParamSpec(w, w.dtype) for name, w in weights["rate"].items()},
            "norm": {"weight": ParamSpec(weights["norm"]["weight"], ctx.dtype)},
            "out": self._out.specs,
        }

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        key_dim, value_dim = self._dims
        qkv, z, b, a = self._project(p["in"], x, flow)
        mixed = advance(flow, self._place, 0, partial(self._conv, qkv, p["conv"]["weight"]))
        q, k, v = mixed.split(self._parts, dim=-1)
        q, k, v = (t.unflatten(-1, (-1, n)) for t, n in ((q, key_dim), (k, key_dim), (v, value_dim)))
        decay, share = self._gates(b, a, p["rate"]["log"], p["rate"]["bias"])
        share = share if self._most == 1.0 else share * self._most
        out = advance(flow, self._place, 1, partial(self._rule, q, k, v, decay, share))
        out = self._gate(out, z.unflatten(-1, (-1, value_dim)), p["norm"]["weight"])
        return self._out(p["out"], out.flatten(-2), flow)

    def _project(self, p: Mapping[str, Any], x: Array, flow: Flow) -> tuple[Array, Array, Array, Array]:
        """q, k and v side by side; z, b, a. All [T, n]."""
        parts = self._in(p, x, flow).split(self._in.outputs, dim=-1)
        if not self._grouped:
            return torch.cat(parts[:3], -1), *parts[3:]
        qkvz, ba = (t.unflatten(-1, (self._groups, -1)) for t in parts)
        (key_dim, _), more = self._dims, self._parts[2] // self._groups
        q, k, v, z = (t.flatten(-2) for t in qkvz.split((key_dim, key_dim, more, more), dim=-1))
        b, a = (t.flatten(-2) for t in ba.chunk(2, -1))
        return torch.cat((q, k, v), -1), z, b, a

    def _gate(self, out: Array, z: Array, weight: Array) -> Array:
        """Heads normed and gated: out, z [T, heads, value_dim]."""
        if self._apart is None:
            gated: Array = self._norm(out, z, weight)
            return gated
        norm, multiply = self._apart
        apart: Array = multiply(norm(out, weight), z)
        return apart
