"""Linear layers after pooling, each with an activation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from thalweg.hal import ops
from thalweg.hal.op import BoundOp
from thalweg.hal.step import Array
from thalweg.models.adapters import ProjectionAdapter, SequenceSlots
from thalweg.models.context import Context
from thalweg.models.tail import Dense
from thalweg.models.weights import ParamSpec, Weight
from thalweg.quantization.online import linear_spec

ACTS = {
    "none": lambda x: x, "tanh": torch.tanh, "relu": torch.relu, "gelu": F.gelu, "silu": F.silu, "sigmoid": torch.sigmoid,
}  # fmt: skip


class Projection:
    """x [S, inputs] in the model's dtype -> [S, outputs]: act(linear(x)). Every rank has the whole matrix, unrounded: it is
    small, and its outputs are the result, or become it."""

    def __init__(self, ctx: Context, weights: Mapping[str, Weight], act: str = "none", *, adapts: bool = False) -> None:
        """adapts: adapters may replace it."""
        self._act = ACTS[act]
        weight = weights["weight"]
        outputs, inputs = weight.sources[0].shape
        form = ctx.format(weight)
        self._op: BoundOp = ctx.bind(ops.linear, in_features=inputs, out_features=outputs, **linear_spec(form))
        self.specs = {"weight": ParamSpec(weight, ctx.dtype, self._op.pack, form)}
        if "bias" in weights:
            self.specs["bias"] = ParamSpec(weights["bias"], ctx.dtype)
        whole = adapts and ctx.adapters is not None and len(weight.sources) == 1
        self._adapter = ProjectionAdapter(ctx, weight, weights.get("bias")) if whole else None

    def __call__(self, p: Mapping[str, Any], x: Array, slots: SequenceSlots | None = None) -> Array:
        """slots: the adapters of x."""
        y = self._op(x, p["weight"], p.get("bias"))
        return self._act(y if self._adapter is None else self._adapter(y, x, slots))


class DenseModules:
    """x f32[S, hidden] -> f32[S, outputs of the last]."""

    def __init__(self, ctx: Context, spec: tuple[Dense, ...], weights: Mapping[int, Any]) -> None:
        self._dtype = getattr(torch, ctx.dtype)
        self._each = [Projection(ctx, weights[i], dense.act) for i, dense in enumerate(spec)]
        self.specs = {i: each.specs for i, each in enumerate(self._each)}

    def __call__(self, p: Mapping[int, Any], x: Array) -> Array:
        x = x.to(self._dtype)
        for i, each in enumerate(self._each):
            x = each(p[i], x)
        return x.to(torch.float32)
