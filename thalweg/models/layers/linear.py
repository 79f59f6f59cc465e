"""Linear layers: y = x @ weight.T + bias, several joined into one product, divided by outputs or by inputs among ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.hal import ops
from thalweg.hal.op import Bound
from thalweg.hal.step import Array
from thalweg.hal.weights import WeightFormat
from thalweg.models.context import Context
from thalweg.models.weights import ParamSpec, Weight
from thalweg.quantization.online import facts


class Linear:
    """Outputs divided among ranks ("column parallel"): each rank computes its own share of every part.

    weights: "weight", and "bias" where there is one. Its sources (q, k, v; gate, up) share one product, their outputs side
    by side. x [T, inputs] -> [T, outputs on this rank]."""

    def __init__(self, ctx: Context, weights: Mapping[str, Weight]) -> None:
        sources = weights["weight"].sources
        self.outputs = [ctx.share(s.shape[0], f"outputs of {s.name.removesuffix('.weight')}") for s in sources]
        """This rank's outputs of each part."""
        form = ctx.format(weights["weight"])
        self._op = ctx.bind(ops.linear, in_features=sources[0].shape[1], out_features=sum(self.outputs), **facts(form))
        self.specs = _specs(ctx, weights, self._op, form)

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        return self._op(x, p["weight"], p.get("bias"))


class RowLinear:
    """Inputs divided among ranks ("row parallel"): each rank adds up its share, then all ranks sum.

    x [T, inputs on this rank] -> [T, outputs], whole on every rank."""

    def __init__(self, ctx: Context, weights: Mapping[str, Weight]) -> None:
        self._comm = ctx.comm
        (source,) = weights["weight"].sources
        outputs, inputs = source.shape
        here = ctx.share(inputs, f"inputs of {source.name.removesuffix('.weight')}")
        form = ctx.format(weights["weight"])
        self._op = ctx.bind(ops.linear, in_features=here, out_features=outputs, **facts(form))
        self.specs = _specs(ctx, weights, self._op, form)

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        bias = p.get("bias")
        if self._comm.size == 1:
            return self._op(x, p["weight"], bias)
        y = self._comm.all_reduce(self._op(x, p["weight"], None))
        return y if bias is None else y + bias  # once, not once per rank


def _specs(ctx: Context, weights: Mapping[str, Weight], op: Bound, form: WeightFormat) -> dict[str, ParamSpec]:
    specs = {"weight": ParamSpec(weights["weight"], ctx.dtype, op.pack, op.pack_parts, form)}
    if "bias" in weights:
        specs["bias"] = ParamSpec(weights["bias"], ctx.dtype)
    return specs
