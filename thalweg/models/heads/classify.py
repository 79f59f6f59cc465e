"""A number per class of one vector per sequence, as text classifiers and rerankers end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.models.adapters import SequenceSlots
from thalweg.models.context import Context
from thalweg.models.heads.dense import Projection
from thalweg.models.tail import Classes
from thalweg.models.weights import ParamSpec


class Classifier:
    """x f32[S, hidden] -> f32[S, classes]: out(norm(act(dense(x)))), or out(x), less the shift."""

    def __init__(self, ctx: Context, spec: Classes, hidden: int, weights: Mapping[str, Any]) -> None:
        self._dtype = getattr(torch, ctx.dtype)
        self._dense = Projection(ctx, weights["dense"], spec.act, adapts=True) if spec.dense else None
        self._norm = ctx.bind(ops.layer_norm, size=hidden, eps=spec.eps) if spec.norm else None
        self._out, self._difference = Projection(ctx, weights["out"], adapts=True), spec.difference
        self._shift = spec.shift
        self.specs: dict[str, Any] = {"out": self._out.specs}
        if self._dense is not None:
            self.specs["dense"] = self._dense.specs
        if self._norm is not None:
            self.specs["norm"] = {"weight": ParamSpec(weights["norm"]["weight"], ctx.dtype)}

    def __call__(self, p: Mapping[str, Any], x: Array, slots: SequenceSlots | None = None) -> Array:
        """slots: the adapters of x, where some may replace this. None: they do not."""
        x = x.to(self._dtype)
        if self._dense is not None:
            x = self._dense(p["dense"], x, slots)
        if self._norm is not None:
            x = self._norm(x, p["norm"]["weight"])
        result = self._out(p["out"], x, slots).to(torch.float32)
        return result[:, 1:] - result[:, :1] if self._difference else result - self._shift
