"""Linear layers: y = x @ weight.T + bias, several joined into one product, divided by outputs or by inputs among ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.op import BoundOp, Op
from thalweg.hal.step import Array
from thalweg.models.adapters import LinearAdapter
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.weights import ParamSpec, Weight, divide_outputs, products
from thalweg.quantization.online import linear_spec


class Product:
    """One product with one weight. Its inputs are reordered and smoothed first, where the weight's format says so: kernels
    never see it. x [T, inputs], bias [outputs] -> [T, outputs]."""

    def __init__(self, ctx: Context, weight: Weight) -> None:
        form = ctx.format(weight)
        outputs, inputs = weight.shape(ctx.mesh.tensor.size)
        self._facts = {"in_features": inputs, "out_features": outputs, **linear_spec(form)}
        self._op = ctx.bind(ops.linear, **self._facts)
        self._prepares = form.reordered or form.smoothed
        self.spec = ParamSpec(weight, ctx.dtype, self._op.pack, form)

    def offer(self, ctx: Context, op: Op, **facts: Any) -> BoundOp | None:
        """An op that ends in this product, over the same packed weight. None where the device has no kernel for both."""
        if self._prepares:
            return None
        return ctx.binder.offer(op, self._op, dtype=ctx.dtype, **self._facts, **facts)

    def __call__(self, x: Array, p: Any, bias: Array | None) -> Array:
        """p: the kernel's packed weight. With prepared inputs, a dict with that ("weight"), "perm" and "in_scale"."""
        if not self._prepares:
            return self._op(x, p, bias)
        if "perm" in p:
            x = x.index_select(-1, p["perm"])
        if "in_scale" in p:
            x = (x.to(torch.float32) * p["in_scale"]).to(x.dtype)
        return self._op(x, p["weight"], bias)


class ActivationClamp:
    """Clamps inputs and outputs of each part of a linear layer: p f32[4 * parts]."""

    def __init__(self, ctx: Context, weight: Weight) -> None:
        self.spec = ParamSpec(weight, "float32")

    def __call__(self, p: Array, part: int, x: Array, product: Callable[[Array], Array]) -> Array:
        low, high, least, most = p[4 * part : 4 * part + 4].to(x.dtype)
        return product(x.clamp(low, high)).clamp(least, most)


class Linear:
    """Outputs divided among ranks ("column parallel"): each rank computes its share of every part. Not divided where the weight
    is not.

    weights: "weight", and "bias" where there is one. Its sources (q, k, v; gate, up) share one product, with concatenated
    outputs. Sources with different formats in the checkpoint have separate products.
    x [T, inputs] -> [T, outputs on this rank]. flow: of the step; None where the rows of x are not tokens."""

    def __init__(self, ctx: Context, weights: Mapping[str, Weight]) -> None:
        whole = weights["weight"]
        self.outputs = [s.shape[0] for s in whole.sources]
        """This rank's outputs of each part."""
        if whole.shard is not None:
            self.outputs = [ctx.share_outputs(s) for s in whole.sources]
        clipped = "clip" in weights
        each = [replace(whole, sources=(s,)) for s in whole.sources] if clipped else [whole]
        parts = [part for weight in each for part in products(weight, ctx.formats)]
        self._clip = ActivationClamp(ctx, weights["clip"]) if clipped else None
        adapted = ctx.adapters is not None and ctx.adapters.includes(whole)
        self._adapter = LinearAdapter(ctx, whole, weights.get("bias")) if adapted else None
        self._products = [Product(ctx, part) for part in parts]
        self._rows = [part.shape(ctx.mesh.tensor.size)[0] for part in parts]
        held = [product.spec for product in self._products]
        self.specs: dict[str, Any] = {"weight": held[0] if len(held) == 1 else dict(enumerate(held))}
        if self._clip is not None:
            self.specs["clip"] = self._clip.spec
        if "bias" in weights:
            self.specs["bias"] = ParamSpec(weights["bias"], ctx.dtype)

    def offer(self, ctx: Context, op: Op, **facts: Any) -> BoundOp | None:
        """As `Product.offer`, for the whole layer: called with its inputs, "weight" and "bias"."""
        if self._adapter is not None or self._clip is not None or len(self._products) > 1:
            return None
        return self._products[0].offer(ctx, op, **facts)

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow | None) -> Array:
        y = self._multiply(p, x)
        return y if self._adapter is None else self._adapter(y, x, flow)

    def _multiply(self, p: Mapping[str, Any], x: Array) -> Array:
        weight, bias = p["weight"], p.get("bias")
        if self._clip is not None:
            weight = [weight] if len(self._products) == 1 else weight
            return torch.cat(
                [self._clip(p["clip"], i, x, partial(product, p=weight[i], bias=None))
                 for i, product in enumerate(self._products)], -1,
            )  # fmt: skip
        if len(self._products) == 1:
            return self._products[0](x, weight, bias)
        biases = [None] * len(self._products) if bias is None else bias.split(self._rows)
        return torch.cat([product(x, weight[i], biases[i]) for i, product in enumerate(self._products)], -1)


class RowLinear:
    """Inputs divided among ranks ("row parallel"): each rank adds up its share, then all ranks sum. With
    `Context.tp_invariant` ranks exchange the inputs, and each computes its share of the outputs.

    x [T, inputs on this rank] -> [T, outputs], whole on every rank. flow: as in `Linear`. read: x has only the sampled rows
    (`Flow.cut`)."""

    def __init__(self, ctx: Context, weights: Mapping[str, Weight]) -> None:
        self._comm = ctx.mesh.tensor
        whole = weights["weight"]
        ctx.share(whole.sources[0].shape[1], f"inputs of {whole.sources[0].name.removesuffix('.weight')}")
        self._gathers = ctx.tp_invariant and self._comm.size > 1
        if self._gathers:
            whole = divide_outputs(whole, self._comm.size)
        self._shares = whole.shard is not None
        self._product = Product(ctx, whole)
        adapted = ctx.adapters is not None and ctx.adapters.includes(whole)
        self._adapter = LinearAdapter(ctx, whole, weights.get("bias")) if adapted else None
        self._clip = ActivationClamp(ctx, weights["clip"]) if "clip" in weights else None
        self.specs = {"weight": self._product.spec}
        if self._clip is not None:
            self.specs["clip"] = self._clip.spec
        if "bias" in weights:
            bias = divide_outputs(weights["bias"], self._comm.size) if self._gathers and self._shares else weights["bias"]
            self.specs["bias"] = ParamSpec(bias, ctx.dtype)

    def offer(self, ctx: Context, op: Op, **facts: Any) -> BoundOp | None:
        """As `Product.offer`: the argument `product` of a call, whose x are then the op's inputs."""
        if self._adapter is not None or self._clip is not None or self._gathers:
            return None
        return self._product.offer(ctx, op, **facts)

    def __call__(
        self, p: Mapping[str, Any], x: Array, flow: Flow | None, read: bool = False, product: BoundOp | None = None
    ) -> Array:
        bias = p.get("bias")
        if self._clip is not None:  # of encoders, which no rank divides
            return self._clip(p["clip"], 0, x, partial(self._product, p=p["weight"], bias=bias))
        if self._gathers:
            x = self._comm.all_gather(x.contiguous())
        y = (product or self._product)(x, p["weight"], bias if self._comm.size == 1 or self._gathers else None)
        if self._adapter is not None:  # of this rank's inputs, so that the sum over ranks is that of the whole adapter
            y = self._adapter(y, x, flow, read)
        if self._comm.size == 1:
            return y
        if self._gathers:
            return self._comm.all_gather(y) if self._shares else y
        y = self._comm.all_reduce(y)
        return y if bias is None else y + bias  # once, not once per rank
