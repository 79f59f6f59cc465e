"""Linear layers: y = x @ weight.T + bias, several joined into one product, divided by outputs or by inputs among ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thalweg.hal import ops
from thalweg.hal.op import Bound
from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.spec import ParamSpec, Source
from thalweg.quantization.online import facts


class Linear:
    """Outputs divided among ranks ("column parallel"): each rank computes its own share of every part.

    parts: checkpoint prefix -> outputs. Several parts (q, k, v; gate, up) share one product, their outputs side by side.
    x [T, inputs] -> [T, outputs on this rank]."""

    def __init__(self, ctx: Context, parts: Mapping[str, int], inputs: int, bias: bool = False) -> None:
        self.outputs = [ctx.share(n, f"outputs of {name}") for name, n in parts.items()]
        """This rank's outputs of each part."""
        self._op = ctx.bind(ops.linear, in_features=inputs, out_features=sum(self.outputs), **facts(ctx.formats.layers))
        self.specs = _specs(ctx, [(name, n, inputs) for name, n in parts.items()], 0, bias, self._op)

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        return self._op(x, p["weight"], p.get("bias"))


class RowLinear:
    """Inputs divided among ranks ("row parallel"): each rank adds up its share, then all ranks sum.

    x [T, inputs on this rank] -> [T, outputs], whole on every rank."""

    def __init__(self, ctx: Context, name: str, inputs: int, outputs: int, bias: bool = False) -> None:
        self._comm = ctx.comm
        here = ctx.share(inputs, f"inputs of {name}")
        self._op = ctx.bind(ops.linear, in_features=here, out_features=outputs, **facts(ctx.formats.layers))
        self.specs = _specs(ctx, [(name, outputs, inputs)], 1, bias, self._op)

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        bias = p.get("bias")
        if self._comm.size == 1:
            return self._op(x, p["weight"], bias)
        y = self._comm.all_reduce(self._op(x, p["weight"], None))
        return y if bias is None else y + bias  # once, not once per rank


def _specs(ctx: Context, parts: Sequence[tuple[str, int, int]], shard: int, bias: bool, op: Bound) -> dict[str, ParamSpec]:
    weights = tuple(Source(f"{name}.weight", (outputs, inputs)) for name, outputs, inputs in parts)
    specs = {"weight": ParamSpec(weights, ctx.dtype, shard, op.pack, op.pack_parts, ctx.formats.layers)}
    if bias:
        biases = tuple(Source(f"{name}.bias", (outputs,)) for name, outputs, _ in parts)
        specs["bias"] = ParamSpec(biases, ctx.dtype, 0 if shard == 0 else None)
    return specs
