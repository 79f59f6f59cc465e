"""A router with layers (Zaya)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal.ops.pointwise import gelu
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import RMSNorm
from thalweg.models.weights import ParamSpec


class DeepRouter:
    """x [T, hidden] -> (ids i32[T, 1], weights f32[T, 1]). A token without an expert has a weight of 0."""

    def __init__(self, ctx: Context, spec: declared.DeepRouter, experts: int, weights: Mapping[str, Any]) -> None:
        self._experts = experts
        self._linear = {key: Linear(ctx, weights[key]) for key in ("down", "first", "second", "out")}
        self._norm = RMSNorm(ctx, declared.Norm("", spec.size, spec.eps), weights["norm"])
        self.specs: dict[str, Any] = {
            **{key: each.specs for key, each in self._linear.items()}, "norm": self._norm.specs,
            "biases": {"weight": ParamSpec(weights["biases"]["weight"], "float32")},
        }  # fmt: skip
        if spec.carries:
            self.specs["carry"] = {"weight": ParamSpec(weights["carry"]["weight"], ctx.dtype)}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> tuple[Array, Array]:
        state = self._linear["down"](p["down"], x, None)
        if "carry" in p:
            assert flow.routed is not None
            state = state + flow.routed * p["carry"]["weight"]
        flow.routed, inner = state, self._norm(p["norm"], state)
        for key in ("first", "second"):
            inner = gelu(self._linear[key](p[key], inner, None))
        scores = torch.softmax(self._linear["out"](p["out"], inner, None).to(torch.float32), -1)
        best = (scores + p["biases"]["weight"]).argmax(-1, keepdim=True)
        none = best == self._experts
        return torch.where(none, 0, best).to(torch.int32), torch.where(none, 0.0, scores.gather(1, best))
