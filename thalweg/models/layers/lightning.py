"""Linear attention with a fixed decay: Mamba-2's recurrence, with steps of one and no skip. The state of a sequence is in the
block of the group's table; it is passed through, never kept."""

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
from thalweg.models.layers.norm import RMSNorm
from thalweg.models.layers.recurrent import advance
from thalweg.models.spec import LightningAttention as Declared
from thalweg.models.spec import Norm
from thalweg.models.weights import ParamSpec, Weight, table_source


class LightningAttention:
    """x [T, hidden] -> [T, hidden]. Divided among ranks by heads, which they gather for the norm."""

    backend = None
    """It attends to nothing, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: Declared, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._comm, self._dim = place, ctx.mesh.tensor, spec.head_dim
        heads = self._heads = ctx.share(spec.heads, "heads of linear attention")
        inner = heads * spec.head_dim
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        self._in, self._out = Linear(ctx, weights["in"]), RowLinear(ctx, weights["out"])
        self._act = ctx.bind(ops.activation, act=spec.act, size=3 * inner) if spec.act else None
        self._scan = ctx.bind(
            ops.ssd_scan, heads=heads, groups=heads, head_dim=spec.head_dim, state=spec.head_dim, low=1.0, high=1.0
        )
        self._groups, self._scale = spec.groups, spec.scale
        self._norm = RMSNorm(ctx, spec.norm, weights["norm"])
        self._group_norm = None
        if spec.groups > 1:
            self._group_norm = ctx.bind(ops.rms_norm, size=spec.inner // spec.groups, eps=spec.eps)
        self._head_norms = {
            key: RMSNorm(ctx, Norm("", spec.head_dim, spec.head_norm.eps), weights[key])
            for key in ("q_norm", "k_norm") if spec.head_norm is not None
        }  # fmt: skip
        self._rope = None
        if spec.rope is not None:
            self._rope = ctx.bind(
                ops.rope, rotary_dim=spec.rope.dim, interleaved=spec.rope.interleaved, heads=heads, kv_heads=heads,
                head_dim=spec.head_dim,
            )  # fmt: skip
        self._gate = ctx.bind(ops.sigmoid_mul, size=inner)
        rates = {"log": torch.tensor(spec.slopes).log(), "bias": torch.zeros(spec.heads), "skip": torch.zeros(spec.heads)}
        tables = {k: Weight((table_source(f"{k} of layer {place.layer}", spec.heads),), 0) for k in rates}
        self.specs: dict[str, Any] = {
            **{key: norm.specs for key, norm in self._head_norms.items()},
            "in": self._in.specs, "norm": self._norm.specs, "out": self._out.specs,
            "rate": {k: ParamSpec(w, "float32", make=partial(torch.clone, rates[k])) for k, w in tables.items()},
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        rate, inner = p["rate"], self._heads * self._dim
        qkv, gate = self._in(p["in"], x, flow).split((3 * inner, inner), dim=-1)
        q, k, v = self._heads_of(p, qkv.contiguous(), flow)
        steps = torch.ones_like(x[:, :1]).expand(-1, self._heads).contiguous()
        scan = partial(
            self._scan, v.contiguous(), steps, k.contiguous(), q.contiguous(), rate["log"], rate["bias"], rate["skip"]
        )
        out = advance(flow, self._place, 0, scan)
        normed = self._comm.part(self._normalise(p["norm"], self._comm.all_gather(out.flatten(-2)))).contiguous()
        return self._out(p["out"], self._gate(normed, gate), flow)

    def _heads_of(self, p: Mapping[str, Any], qkv: Array, flow: Flow) -> tuple[Array, Array, Array]:
        """q, k and v [T, heads, head_dim] of their projections."""
        if self._act is not None:
            qkv = self._act(qkv)
        q, k, v = qkv.unflatten(-1, (3, self._heads, self._dim)).unbind(-3)
        if self._head_norms:
            q, k = (self._head_norms[key](p[key], each) for key, each in (("q_norm", q), ("k_norm", k)))
        if self._rope is not None:
            q, k = self._rope(q, k, flow.batch.positions, flow.tables[self._place.table])
        return q if self._scale == 1.0 else q * self._scale, k, v

    def _normalise(self, p: Mapping[str, Any], x: Array) -> Array:
        if self._group_norm is None:
            return self._norm(p, x)
        return self._group_norm(x.unflatten(-1, (self._groups, -1))).flatten(-2) * p["weight"]
