"""Linear layers: y = x @ weight.T + bias, several joined into one product, divided by outputs or by inputs among ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.op import Bound
from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.weights import ParamSpec, Weight
from thalweg.quantization.online import linear_spec


class Linear:
    """Outputs divided among ranks ("column parallel"): each rank computes its own share of every part.

    weights: "weight", and "bias" where there is one. Its sources (q, k, v; gate, up) share one product, their outputs side
    by side; those that a checkpoint holds in different formats stay products of their own.
    x [T, inputs] -> [T, outputs on this rank]."""

    def __init__(self, ctx: Context, weights: Mapping[str, Weight]) -> None:
        whole = weights["weight"]
        self.outputs = [ctx.share(s.shape[0], f"outputs of {s.name.removesuffix('.weight')}") for s in whole.sources]
        """This rank's outputs of each part."""
        alike = groupby(whole.sources, key=lambda s: ctx.formats.of(whole.role, s.name))
        products = [replace(whole, sources=tuple(sources)) for _, sources in alike]
        self._ops = [_bound(ctx, product) for product in products]
        self._rows = [product.shape(ctx.comm.size)[0] for product in products]
        held = [_spec(ctx, product, op) for product, op in zip(products, self._ops, strict=True)]
        self.specs: dict[str, Any] = {"weight": held[0] if len(held) == 1 else dict(enumerate(held))}
        if "bias" in weights:
            self.specs["bias"] = ParamSpec(weights["bias"], ctx.dtype)

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        weight, bias = p["weight"], p.get("bias")
        if len(self._ops) == 1:
            return self._ops[0](x, weight, bias)
        biases = [None] * len(self._ops) if bias is None else bias.split(self._rows)
        return torch.cat([op(x, weight[i], biases[i]) for i, op in enumerate(self._ops)], -1)


class RowLinear:
    """Inputs divided among ranks ("row parallel"): each rank adds up its share, then all ranks sum.

    x [T, inputs on this rank] -> [T, outputs], whole on every rank."""

    def __init__(self, ctx: Context, weights: Mapping[str, Weight]) -> None:
        self._comm = ctx.comm
        whole = weights["weight"]
        ctx.share(whole.sources[0].shape[1], f"inputs of {whole.sources[0].name.removesuffix('.weight')}")
        self._op = _bound(ctx, whole)
        self.specs = {"weight": _spec(ctx, whole, self._op)}
        if "bias" in weights:
            self.specs["bias"] = ParamSpec(weights["bias"], ctx.dtype)

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        bias = p.get("bias")
        if self._comm.size == 1:
            return self._op(x, p["weight"], bias)
        y = self._comm.all_reduce(self._op(x, p["weight"], None))
        return y if bias is None else y + bias  # once, not once per rank


def _bound(ctx: Context, weight: Weight) -> Bound:
    outputs, inputs = weight.shape(ctx.comm.size)
    return ctx.bind(ops.linear, in_features=inputs, out_features=outputs, **linear_spec(ctx.format(weight)))


def _spec(ctx: Context, weight: Weight, op: Bound) -> ParamSpec:
    return ParamSpec(weight, ctx.dtype, op.pack, ctx.format(weight))
