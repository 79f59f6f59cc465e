"""Gated residual streams around the parts of a layer (Qwen 4). Streams are [T, n, hidden].

Sums over the few streams are written out, so that a token's sum does not depend on the batch size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.ops.pointwise import sigmoid, silu
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.hyper import sum_streams
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.ngram import NGramInput
from thalweg.models.layers.perlayer import Inner
from thalweg.models.weights import ParamSpec


class StreamNorm:
    """x [T, n, hidden] -> the same shape: each stream normed, with a separate weight plus 1."""

    def __init__(self, ctx: Context, hidden: int, eps: float, weights: Mapping[str, Any]) -> None:
        self._norm = ctx.binder.bind(ops.rms_norm, dtype="float32", size=hidden, eps=eps)
        self.specs = {"weight": ParamSpec(weights["weight"], ctx.dtype)}

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        normed = self._norm(x.to(torch.float32)) * (1 + p["weight"].to(torch.float32).view(x.shape[1:]))
        return normed.to(x.dtype)


class StreamGates:
    """Streams -> (their gated mean [T, hidden], the normed streams [T, n * hidden])."""

    def __init__(self, ctx: Context, streams: int, eps: float, weights: Mapping[str, Any]) -> None:
        hidden = weights["norm"]["weight"].sources[0].shape[0] // streams
        self._norm = StreamNorm(ctx, hidden, eps, weights["norm"])
        self._down, self._up = Linear(ctx, weights["down"]), Linear(ctx, weights["up"])
        self.specs: dict[str, Any] = {"norm": self._norm.specs, "down": self._down.specs, "up": self._up.specs}

    def __call__(self, p: Mapping[str, Any], x: Array) -> tuple[Array, Array]:
        normed, n = self._norm(p["norm"], x), x.shape[1]
        flat = normed.flatten(1)
        gates = sigmoid(self._up(p["up"], silu(self._down(p["down"], flat, None) / n), None)).view(x.shape)
        return (sum_streams(None, gates * normed) / n).to(x.dtype), flat


class GatedStreams:
    """x [T, hidden] -> streams, and back."""

    def __init__(self, ctx: Context, spec: declared.GatedStreams, weights: Mapping[str, Any]) -> None:
        self._count, self._gates = spec.count, StreamGates(ctx, spec.count, spec.eps, weights)
        self.specs = self._gates.specs

    def enter(self, p: Mapping[str, Any], x: Array) -> Array:
        return torch.stack([x] * self._count, 1)

    def leave(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        return self._gates(p, x)[0]


class GatedResidual:
    """A part of a layer with the streams around it: [T, n, hidden] -> the same shape."""

    def __init__(
        self, ctx: Context, spec: declared.GatedResidual, inner: Inner, weights: Mapping[str, Any], number: int
    ) -> None:
        self._inner, self.mixers, self.places = inner, inner.mixers, inner.places
        self._gates, self._inject = StreamGates(ctx, spec.streams, spec.eps, weights), Linear(ctx, weights["inject"])
        self._inputs = None
        own = self._gates.specs | {"inject": self._inject.specs}
        if spec.inputs is not None:
            ids, convolved = inner.places[:2]
            self._inputs = NGramInput(ctx, spec.inputs, weights["inputs"], ids, convolved, StreamNorm)
            own["inputs"] = self._inputs.specs
        self.specs = inner.specs | {"around": own}

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        own = p["around"]
        if self._inputs is not None:
            x = x + self._inputs(own["inputs"], x, flow)
        entered, flat = self._gates(own, x)
        shares = 2 * sigmoid(self._inject(own["inject"], flat, None) / x.shape[1])
        found = self._inner(p, entered, None, flow)[0]
        return x + found[:, None] * shares[:, :, None], None
