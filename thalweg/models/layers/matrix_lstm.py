"""The matrix LSTM. The state of a sequence is in the block of the group's table. It is passed through, never kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from thalweg.hal import ops
from thalweg.hal.ops.pointwise import sigmoid, softplus, tanh
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import normalize_heads
from thalweg.models.layers.recurrent import advance
from thalweg.models.weights import ParamSpec


class MatrixLSTM:
    """x [T, hidden] -> [T, hidden]. Not divided among ranks."""

    backend = None
    """It attends to nothing, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: declared.MatrixLSTM, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._spec = place, spec
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        self._in, self._gates, self._out = (Linear(ctx, weights[key]) for key in ("in", "gates", "out"))
        self._scan = ctx.bind(ops.matrix_lstm, eps=spec.eps)
        self.specs: dict[str, Any] = {
            "in": self._in.specs, "gates": self._gates.specs, "out": self._out.specs,
            "norm": ParamSpec(weights["norm"], "float32"),
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        heads, cap = self._spec.heads, self._spec.cap
        *parts, gate = self._in(p["in"], x, flow).split(self._in.outputs, dim=-1)
        query, key, value = (part.float().unflatten(-1, (heads, -1)) for part in parts)
        gates: Array = cap * tanh(self._gates(p["gates"], x, flow).float() / cap)
        enters, forget = gates.chunk(2, dim=-1)
        out = advance(flow, self._place, 0, partial(self._scan, query, key, value, enters, -softplus(-forget)))
        normed = normalize_heads(out, self._spec.norm_eps, p["norm"]).flatten(-2).to(x.dtype)
        return self._out(p["out"], sigmoid(gate) * normed, flow)
