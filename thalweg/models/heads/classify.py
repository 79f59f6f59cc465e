"""A number per class of one vector per sequence, as text classifiers and rerankers end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.op import Bound
from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.tail import Classes
from thalweg.models.weights import ParamSpec, Weight
from thalweg.quantization.online import linear_spec


class Classifier:
    """x f32[S, hidden] -> f32[S, classes]: out(tanh(dense(x))), or out(x). Every rank has all of it, unrounded: it is small,
    and its numbers are the answer."""

    def __init__(self, ctx: Context, spec: Classes, hidden: int, weights: Mapping[str, Any]) -> None:
        self._dtype = getattr(torch, ctx.dtype)
        self._dense = _bound(ctx, weights["dense"]["weight"]) if spec.dense else None
        self._out = _bound(ctx, weights["out"]["weight"])
        self.specs: dict[str, Any] = {"out": _specs(ctx, weights["out"], self._out)}
        if self._dense is not None:
            self.specs["dense"] = _specs(ctx, weights["dense"], self._dense)

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        x = x.to(self._dtype)
        if self._dense is not None:
            x = torch.tanh(self._dense(x, p["dense"]["weight"], p["dense"]["bias"]))
        return self._out(x, p["out"]["weight"], p["out"].get("bias")).to(torch.float32)


def _bound(ctx: Context, weight: Weight) -> Bound:
    outputs, inputs = weight.sources[0].shape
    return ctx.bind(ops.linear, in_features=inputs, out_features=outputs, **linear_spec(ctx.format(weight)))


def _specs(ctx: Context, weights: Mapping[str, Weight], op: Bound) -> dict[str, ParamSpec]:
    made = {"weight": ParamSpec(weights["weight"], ctx.dtype, op.pack, ctx.format(weights["weight"]))}
    return made | ({"bias": ParamSpec(weights["bias"], ctx.dtype)} if "bias" in weights else {})
