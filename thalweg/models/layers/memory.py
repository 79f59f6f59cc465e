"""Layers around shared transformer blocks. Streams lie side by side: the residual stream, the embedding, and between the parts
of a layer the output of the last one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.layers.low_rank import LowRankProduct
from thalweg.models.layers.perlayer import Inner


class MemoryStreams:
    """x [T, hidden] -> [T, 2 * hidden], and back."""

    def __init__(self, ctx: Context, spec: declared.MemoryStreams, weights: Mapping[str, Any]) -> None:
        self.specs: dict[str, Any] = {}

    def enter(self, p: Mapping[str, Any], x: Array) -> Array:
        return torch.cat((x, x), -1)

    def leave(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        return x.chunk(2, -1)[0].contiguous()


class MemoryPart:
    """A part of a layer with the streams around it: [T, 2 * hidden] or, between the parts, [T, 3 * hidden]."""

    def __init__(self, ctx: Context, spec: declared.MemoryPart, inner: Inner, weights: Mapping[str, Any], number: int) -> None:
        self._inner, self.mixers, self.places, self._role = inner, inner.mixers, inner.places, spec.role
        self._linear = Linear(ctx, weights["linear"]) if spec.linear else None
        self.specs = inner.specs | ({} if self._linear is None else {"around": {"linear": self._linear.specs}})

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        if self._role == "attend":
            return torch.cat((x, self._inner(p, x, None, flow)[0]), -1), None
        if self._role == "feed":
            both, found = x.tensor_split((x.shape[-1] // 3 * 2,), -1)
            return torch.cat((both, self._inner(p, found.contiguous(), None, flow)[0]), -1), None
        stream, first, *found = x.chunk(2 if self._linear is None else 3, -1)
        entered = stream.contiguous()
        if self._linear is not None:
            entered = stream + self._linear(p["around"]["linear"], found[0].contiguous(), flow)
        return torch.cat((stream + self._inner(p, entered, None, flow)[0], first), -1), None


class LowRankMLP:
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: declared.LowRankMLP, weights: Mapping[str, Any]) -> None:
        self._in, self._low, self._out = (
            Linear(ctx, weights["gate_up"]), LowRankProduct(ctx, weights["low"]), RowLinear(ctx, weights["down"])
        )  # fmt: skip
        self._act = ctx.bind(ops.act_and_mul, act=spec.inner.act, size=self._in.outputs[0])
        self.specs = {"gate_up": self._in.specs, "low": self._low.specs, "down": self._out.specs}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        both = self._in(p["gate_up"], x, flow) + self._low(p["low"], x, flow)
        return self._out(p["down"], self._act(both), flow)
