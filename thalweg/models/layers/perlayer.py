"""Per-layer embeddings: a separate input for each layer, computed once in a step, and added at each layer's end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.hal.weights import DENSE
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.linear import Product
from thalweg.models.layers.norm import RMSNorm
from thalweg.models.weights import ParamSpec


class Inner(Protocol):
    """A layer of the usual form (`decoder.Block`)."""

    mixers: list[Any]
    places: Sequence[MixerRef]
    specs: dict[str, Any]

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]: ...


class LayerInputs:
    """tokens i32[T], embedded x [T, hidden] -> [T, layers, width]."""

    def __init__(self, ctx: Context, spec: declared.LayerInputs, weights: Mapping[str, Any]) -> None:
        self._comm, self._rows, self._shape = ctx.mesh.tensor, spec.rows, (spec.layers, spec.width)
        dtype = getattr(torch, ctx.dtype)
        # Rounded to the model's dtype before it multiplies, as embeddings' scales are.
        self._scale = float(torch.tensor(spec.width**0.5, dtype=dtype))
        self._shrink = float(weights["projection"]["weight"].sources[0].shape[1] ** -0.5)
        self._project = Product(ctx, weights["projection"]["weight"])
        self._norm = RMSNorm(ctx, declared.Norm("", spec.width, spec.eps), weights["norm"])
        self.specs: dict[str, Any] = {"projection": {"weight": self._project.spec}, "norm": self._norm.specs}
        if "table" not in weights:
            return
        table = weights["table"]["weight"]
        form = ctx.format(table)
        weight = {} if form == DENSE else {"weight": form, "group": form.group}
        self._embed = ctx.bind(ops.embed, vocab=spec.rows, size=ctx.share(spec.size, "values of a layer's inputs"), **weight)
        self.specs["table"] = {"weight": ParamSpec(table, ctx.dtype, self._embed.pack, form)}

    def __call__(self, p: Mapping[str, Any], tokens: Array, x: Array) -> Array:
        seen = (self._project(x, p["projection"]["weight"], None) * self._shrink).unflatten(-1, self._shape)
        projected = self._norm(p["norm"], seen)
        if not self._rows:
            return projected
        tokens = torch.where((tokens >= 0) & (tokens < self._rows), tokens, 0)
        known = self._comm.all_gather(self._embed(tokens, p["table"]["weight"]), -1) * self._scale
        return (projected + known.unflatten(-1, self._shape)) * 0.5**0.5


class LayerInput:
    """x [T, hidden] -> [T, hidden], the addition to it."""

    def __init__(self, ctx: Context, spec: declared.LayerInput, weights: Mapping[str, Any], number: int) -> None:
        self._number = number
        self._gate, self._up = (Product(ctx, weights[k]["weight"]) for k in ("gate", "up"))
        self._act = ctx.bind(ops.act_and_mul, act=spec.act, size=spec.width)
        hidden = weights["up"]["weight"].sources[0].shape[0]
        self._norm = RMSNorm(ctx, declared.Norm("", hidden, spec.eps), weights["norm"])
        self.specs = {"gate": {"weight": self._gate.spec}, "up": {"weight": self._up.spec}, "norm": self._norm.specs}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        assert flow.inputs is not None
        gate = self._gate(x, p["gate"]["weight"], None)
        inner = self._act(torch.cat([gate, flow.inputs[:, self._number]], -1))
        return self._norm(p["norm"], self._up(inner, p["up"]["weight"], None))


class LayerEnding:
    """A layer with its final operation on the residual stream."""

    def __init__(self, ctx: Context, spec: declared.LayerEnding, inner: Inner, weights: Mapping[str, Any], number: int) -> None:
        self._inner, self.mixers, self.places = inner, inner.mixers, inner.places
        self._input = None if spec.input is None else LayerInput(ctx, spec.input, weights["input"], number)
        own: dict[str, Any] = {} if self._input is None else {"input": self._input.specs}
        if spec.scalar:
            own["scalar"] = {"weight": ParamSpec(weights["scalar"]["weight"], ctx.dtype)}
        self.specs = inner.specs | {"around": own}

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        x, residual = self._inner(p, x, residual, flow)
        own, x = p["around"], x if residual is None else x + residual
        if self._input is not None:
            x = x + self._input(own["input"], x, flow)
        return x * own["scalar"]["weight"] if "scalar" in own else x, None
