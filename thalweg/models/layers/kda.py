"""Kimi Delta Attention: projections, short convolutions, the delta rule with a decay for each channel, a gated norm of every
head. The state of a sequence is passed through, never kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.layers.recurrent import advance
from thalweg.models.spec import KimiDelta
from thalweg.models.weights import ParamSpec


class KimiDeltaAttention:
    """x [T, hidden] -> [T, hidden]. Divided among ranks by heads."""

    backend = None
    """It attends to nothing, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: KimiDelta, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._dim = place, spec.dim
        self._heads = ctx.share(spec.heads, "heads of a delta net")
        self._inner = self._heads * spec.dim
        self._parts = (3 * self._inner, self._heads, *(self._inner,) * (2 * spec.full + spec.full_gate))
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        self._projected = {k: Linear(ctx, weights[k]) for k in ("in", "low", "decay", "gate") if k in weights}
        self._conv = ctx.bind(ops.causal_conv, act=spec.act, channels=3 * self._inner, taps=spec.kernel)
        floor = {"floor": spec.floor} if spec.floor else {}  # named only where there is one: kernels have none
        self._gates = ctx.bind(ops.channel_delta_gates, heads=self._heads, size=spec.dim, **floor)
        self._rule = ctx.bind(ops.channel_delta_rule, heads=self._heads, size=spec.dim)
        self._norm = ctx.bind(ops.rms_norm, size=spec.dim, eps=spec.eps)
        self._gated = ctx.bind(ops.sigmoid_mul, size=spec.dim)
        self._out = RowLinear(ctx, weights["out"])
        self.specs: dict[str, Any] = {
            **{k: part.specs for k, part in self._projected.items()},
            "conv": {"weight": ParamSpec(weights["conv"]["weight"], ctx.dtype)},
            "rate": {name: ParamSpec(w, w.dtype) for name, w in weights["rate"].items()},
            "norm": {"weight": ParamSpec(weights["norm"]["weight"], ctx.dtype)},
            "out": self._out.specs,
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        qkv, b, *more = self._projected["in"](p["in"], x, flow).split(self._parts, dim=-1)
        step, gate = more if len(more) == 2 else self._low_rank(p, x, more, flow)
        mixed = advance(flow, self._place, 0, partial(self._conv, qkv.contiguous(), p["conv"]["weight"]))
        q, k, v = (part.unflatten(-1, (-1, self._dim)) for part in mixed.chunk(3, -1))
        step, gate = (part.unflatten(-1, (-1, self._dim)) for part in (step, gate))
        decay, share = self._gates(b, step, p["rate"]["log"], p["rate"]["bias"].view(-1, self._dim))
        out = advance(flow, self._place, 1, partial(self._rule, q, k, v, decay, share))
        out = self._gated(self._norm(out, p["norm"]["weight"]), gate)
        return self._out(p["out"], out.flatten(-2), flow)

    def _low_rank(self, p: Mapping[str, Any], x: Array, more: Sequence[Array], flow: Flow) -> tuple[Array, Array]:
        """Inputs [T, heads * dim] of the decay and of the gate. more: the gate's, if it has one matrix."""
        low = self._projected["low"](p["low"], x, flow)
        if more:
            return self._projected["decay"](p["decay"], low, flow), more[0]
        low, gate = (part.contiguous() for part in low.chunk(2, -1))
        return self._projected["decay"](p["decay"], low, flow), self._projected["gate"](p["gate"], gate, flow)
