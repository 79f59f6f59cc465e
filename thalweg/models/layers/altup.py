"""AltUp: several residual streams of which layers compute one, and LAuReL, a low-rank path parallel to attention. Streams are
[T, n, hidden].

Sums over the few streams are written out, so that a token's sum does not depend on the batch size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.hal.weights import DENSE
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.linear import Product
from thalweg.models.layers.norm import RMSNorm
from thalweg.models.layers.perlayer import Inner, LayerInput
from thalweg.models.weights import ParamSpec
from thalweg.quantization.online import linear_spec

LEAST = 1e-5
"""Of a stream's mean square."""


class Streams:
    """x [T, hidden] -> streams, and back."""

    def __init__(self, ctx: Context, spec: declared.Streams, weights: Mapping[str, Any]) -> None:
        self._ends = {k: {i: Product(ctx, w["weight"]) for i, w in weights[k].items()} for k in ("enter", "leave")}
        self.specs = {k: {i: {"weight": product.spec} for i, product in of.items()} for k, of in self._ends.items()}

    def enter(self, p: Mapping[str, Any], x: Array) -> Array:
        result = (product(x, p["enter"][i]["weight"], None) for i, product in self._ends["enter"].items())
        return torch.stack([x, *(_alike(other, x) for other in result)], 1)

    def leave(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        first, total = x[:, 0], x[:, 0]
        for i, product in self._ends["leave"].items():
            total = total + _alike(product(x[:, i + 1].contiguous(), p["leave"][i]["weight"], None), first)
        return total / x.shape[1]


def _alike(x: Array, to: Array) -> Array:
    """x with the root mean square of `to`."""
    square, wanted = (t.to(torch.float32).square().mean(-1, keepdim=True) for t in (x, to))
    return (x.to(torch.float32) * (wanted / square.clamp(min=LEAST)).sqrt()).to(x.dtype)


class AltUp:
    """A layer with the prediction and correction of the streams around it: [T, n, hidden] -> the same shape."""

    def __init__(self, ctx: Context, spec: declared.AltUp, inner: Inner, weights: Mapping[str, Any], number: int) -> None:
        self._inner, self.mixers, self.places = inner, inner.mixers, inner.places
        self._active, self._scaled = spec.active, spec.scaled
        router = weights["router"]["weight"]
        streams, hidden = router.sources[0].shape
        self._shrink = 1.0 / hidden
        self._router = ctx.bind(ops.linear, in_features=hidden, out_features=streams, **linear_spec(DENSE))
        self._norm = RMSNorm(ctx, declared.Norm("", hidden, spec.eps), weights["norm"])
        self._input = LayerInput(ctx, spec.input, weights["input"], number)
        own: dict[str, Any] = {
            k: {"weight": ParamSpec(weights[k]["weight"], ctx.dtype)} for k in ("predict", "correct", "scale")
        }
        own |= {"router": {"weight": ParamSpec(router, ctx.dtype, self._router.pack)}}
        self.specs = inner.specs | {"around": own | {"norm": self._norm.specs, "input": self._input.specs}}

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        own, wide, n = p["around"], x.to(torch.float32), x.shape[1]
        by = _weighted_sum(self._router_modalities(own, x[:, self._active]), own["predict"]["weight"]).unflatten(-1, (n, n))
        predicted = wide
        for j in range(n):
            predicted = predicted + by[:, :, j, None] * wide[:, j : j + 1]
        predicted = predicted.to(x.dtype)
        found, residual = self._inner(p, predicted[:, self._active], None, flow)
        found = found if residual is None else found + residual
        share = 1 + _weighted_sum(self._router_modalities(own, found), own["correct"]["weight"])
        change = (found - predicted[:, self._active]).to(torch.float32)
        corrected = (predicted.to(torch.float32) + change[:, None] * share[..., None]).to(x.dtype)
        first = corrected[:, self._active].contiguous()
        more = self._input(own["input"], first * own["scale"]["weight"] if self._scaled else first, flow)
        return torch.cat([corrected[:, :1], corrected[:, 1:] + more[:, None]], 1), None

    def _router_modalities(self, p: Mapping[str, Any], x: Array) -> Array:
        """x [T, hidden] -> f32[T, n]."""
        routed = self._router(self._norm(p["norm"], x) * self._shrink, p["router"]["weight"], None)
        return torch.tanh(routed.to(torch.float32))


def _weighted_sum(x: Array, weight: Array) -> Array:
    """x f32[T, n], weight [k, n] -> f32[T, k]."""
    weight = weight.to(torch.float32)
    total = x[:, :1] * weight[:, 0]
    for j in range(1, x.shape[1]):
        total = total + x[:, j : j + 1] * weight[:, j]
    return total


class Laurel:
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: declared.Laurel, weights: Mapping[str, Any]) -> None:
        self._left, self._right = (Product(ctx, weights[k]["weight"]) for k in ("left", "right"))
        hidden = weights["right"]["weight"].sources[0].shape[0]
        self._norm = RMSNorm(ctx, declared.Norm("", hidden, spec.eps), weights["norm"])
        self.specs = {"left": {"weight": self._left.spec}, "right": {"weight": self._right.spec}, "norm": self._norm.specs}

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        low = self._left(x, p["left"]["weight"], None)
        return x + self._norm(p["norm"], self._right(low, p["right"]["weight"], None))
