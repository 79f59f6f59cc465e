"""Attention over depth around the parts of a layer (Kimi K3). Streams are [T, n, hidden], of which the last is open: n grows by
one with each run of layers.

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
from thalweg.models.layers.hyper import sum_streams
from thalweg.models.layers.perlayer import Inner
from thalweg.models.weights import ParamSpec
from thalweg.quantization.online import linear_spec


class DepthMean:
    """Streams [T, n, hidden] -> [T, hidden]. Weights and sums are in float32."""

    def __init__(self, ctx: Context, eps: float, weights: Mapping[str, Any]) -> None:
        w = weights["proj"]["weight"]
        size = w.sources[0].shape[1]
        self._norm = ctx.binder.bind(ops.rms_norm, dtype="float32", size=size, eps=eps)
        self._product = ctx.binder.bind(ops.linear, dtype="float32", in_features=size, out_features=1, **linear_spec(DENSE))
        self.specs: dict[str, Any] = {
            "norm": {"weight": ParamSpec(weights["norm"]["weight"], "float32")},
            "proj": {"weight": ParamSpec(w, "float32", self._product.pack)},
        }

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        if x.shape[1] == 1:
            return x[:, 0]
        normed = self._norm(x.flatten(0, 1).to(torch.float32), p["norm"]["weight"])
        logits = self._product(normed, p["proj"]["weight"], None).view(x.shape[:2])
        return sum_streams(torch.softmax(logits, -1), x).to(x.dtype)


class ResidualBlocks:
    """x [T, hidden] -> streams, and back."""

    def __init__(self, ctx: Context, spec: declared.ResidualBlocks, weights: Mapping[str, Any]) -> None:
        self._mean = DepthMean(ctx, spec.eps, weights)
        self.specs = self._mean.specs

    def enter(self, p: Mapping[str, Any], x: Array) -> Array:
        return x.unsqueeze(1)

    def leave(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        return self._mean(p, x)


class DepthAttention:
    """A part of a layer with the streams around it: [T, n, hidden] -> the same shape, or one stream more."""

    def __init__(
        self, ctx: Context, spec: declared.DepthAttention, inner: Inner, weights: Mapping[str, Any], number: int
    ) -> None:
        self._inner, self.mixers, self.places, self._begins = inner, inner.mixers, inner.places, spec.begins
        self._mean = DepthMean(ctx, spec.eps, weights) if weights else None
        self.specs = inner.specs | ({} if self._mean is None else {"around": self._mean.specs})

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        read = x[:, 0] if self._mean is None else self._mean(p["around"], x)
        found = self._inner(p, read.contiguous(), None, flow)[0]  # the streams have what it is added to
        done, total = (x, found) if self._begins else (x[:, :-1], x[:, -1] + found)
        return torch.cat((done, total.unsqueeze(1)), 1), None
