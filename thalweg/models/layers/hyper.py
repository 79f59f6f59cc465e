"""Hyper-connections around the parts of a layer. Streams are [T, n, hidden].

Sums over the few streams are written out, so that a token's sum does not depend on the batch size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.ops.pointwise import sigmoid
from thalweg.hal.step import Array
from thalweg.hal.weights import DENSE
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.engram import EngramInput
from thalweg.models.layers.perlayer import Inner
from thalweg.models.weights import ParamSpec
from thalweg.quantization.online import linear_spec


class StreamLogits:
    """Streams [T, n, hidden] -> f32[T, outputs]: the product of all of a token's streams, normed together."""

    def __init__(self, ctx: Context, eps: float, weights: Mapping[str, Any]) -> None:
        fn = weights["fn"]["weight"]
        outputs, size = fn.sources[0].shape
        self._norm = ctx.binder.bind(ops.rms_norm, dtype="float32", size=size, eps=eps)
        self._product = ctx.binder.bind(
            ops.linear, dtype="float32", in_features=size, out_features=outputs, **linear_spec(DENSE)
        )
        self.specs: dict[str, Any] = {
            "fn": {"weight": ParamSpec(fn, "float32", self._product.pack)},
            **{key: {"weight": ParamSpec(weights[key]["weight"], "float32")} for key in ("base", "scale")},
        }

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        result: Array = self._product(self._norm(x.flatten(1).to(torch.float32)), p["fn"]["weight"], None)
        return result


class HyperStreams:
    """x [T, hidden] -> streams, and back."""

    def __init__(self, ctx: Context, spec: declared.HyperStreams, weights: Mapping[str, Any]) -> None:
        self._count, self._eps, self._carried = spec.count, spec.hyper_eps, spec.carried
        self._logits = StreamLogits(ctx, spec.eps, weights) if weights else None
        self.specs = {} if self._logits is None else self._logits.specs

    def enter(self, p: Mapping[str, Any], x: Array) -> Array:
        return torch.stack([x] * self._count, 1)

    def leave(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        if self._carried:
            return enter_part(x, flow)
        if self._logits is None:
            return (sum_streams(None, x) / self._count).to(x.dtype)
        weight = sigmoid(self._logits(p, x) * p["scale"]["weight"] + p["base"]["weight"]) + self._eps
        return sum_streams(weight, x).to(x.dtype)


class HyperConnection:
    """A part of a layer with the streams around it: [T, n, hidden] -> the same shape."""

    def __init__(
        self, ctx: Context, spec: declared.HyperConnection, inner: Inner, weights: Mapping[str, Any], number: int
    ) -> None:
        self._inner, self.mixers, self.places = inner, inner.mixers, inner.places
        self._logits = StreamLogits(ctx, spec.eps, weights)
        self._weights: Any = self._apart
        self._magnitude, self._eps = spec.magnitude, spec.hyper_eps
        if spec.iters:
            self._weights = ctx.binder.bind(
                ops.hyper_weights, dtype="float32", streams=spec.streams, iters=spec.iters, eps=spec.hyper_eps
            )
        own = dict(self._logits.specs)
        self._carried, self._inputs = spec.carried, None
        if spec.inputs is not None:
            self._inputs = EngramInput(ctx, spec.inputs, weights["inputs"], inner.places[0])
            own["inputs"] = self._inputs.specs
        self.specs = inner.specs | {"around": own}

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        own = p["around"]
        if self._inputs is not None:
            x = x + self._inputs(own["inputs"], x, flow)
        pre, post, comb = self._weights(self._logits(own, x), own["base"]["weight"], own["scale"]["weight"])
        entered = enter_part(x, flow) if self._carried else sum_streams(pre, x).to(x.dtype)
        flow.stream_weights = pre if self._carried else None
        found = self._inner(p, entered, None, flow)[0]  # the streams have what a layer adds it to
        wide = x.to(torch.float32)
        total = post[:, :, None] * found.to(torch.float32)[:, None]
        if comb is None:
            return (total + wide).to(x.dtype), None
        for j in range(x.shape[1]):
            total = total + comb[:, j, :, None] * wide[:, j : j + 1]
        return total.to(x.dtype), None

    def _apart(self, logits: Array, base: Array, scale: Array) -> tuple[Array, Array, None]:
        """The weights of the input and of the output, f32[T, n] each, where streams are not mixed."""
        n = logits.shape[1] // 2
        pre = sigmoid(logits[:, :n] * scale[0] + base[:n]) + self._eps
        return pre, self._magnitude * sigmoid(logits[:, n:] * scale[1] + base[n:]) + self._eps, None


def enter_part(x: Array, flow: Flow) -> Array:
    """Streams [T, n, hidden] -> their sum [T, hidden], with the weights that the part before has computed."""
    weight = flow.stream_weights
    return x[:, 0] if weight is None else sum_streams(weight, x).to(x.dtype)


def sum_streams(weight: Array | None, x: Array) -> Array:
    """weight f32[T, n] (None: ones), x [T, n, hidden] -> f32[T, hidden]."""
    parts = [x[:, j].to(torch.float32) * (1 if weight is None else weight[:, j : j + 1]) for j in range(x.shape[1])]
    return sum(parts[1:], parts[0])
