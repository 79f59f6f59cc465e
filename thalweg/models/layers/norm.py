"""Norms of an input, or of the residual stream after an addition, which is one pass over memory, not two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.ops.pointwise import sigmoid, silu
from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.layers.linear import Product
from thalweg.models.layers.ranks import HeadParts
from thalweg.models.spec import (
    AnyNorm,
    DenseNorm,
    GatedNorm,
    HeadNorm,
    LayerNorm,
    NestedNorm,
    Norm,
    PairNorm,
    Scale,
    ScaledNorm,
)
from thalweg.models.weights import ParamSpec


def norm_facts(eps: float, offset: float) -> dict[str, Any]:
    """Facts of a norm for binding. An offset is named only where there is one: most kernels have none."""
    return {"eps": eps, "offset": offset} if offset else {"eps": eps}


class RMSNorm:
    """x [T, size] -> [T, size]."""

    def __init__(self, ctx: Context, spec: Norm, weights: Mapping[str, Any]) -> None:
        self.facts = facts = norm_facts(spec.eps, spec.offset)
        self._norm = ctx.bind(ops.rms_norm, size=spec.size, **facts)
        self._add = ctx.bind(ops.add_rms_norm, size=spec.size, **facts) if spec.weight else None
        self.weighted = self._add is not None
        self.specs = {name: ParamSpec(w, ctx.dtype) for name, w in weights.items()}

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        return self._norm(x) if self._add is None else self._norm(x, p["weight"])

    def add(self, p: Mapping[str, Any], x: Array, residual: Array | None) -> tuple[Array, Array]:
        """The norm of x + residual, and that sum. residual None: x itself is the sum (the first layer)."""
        if residual is None or self._add is None:
            x = x if residual is None else x + residual
            return self(p, x), x
        normed, residual = self._add(x, residual, p["weight"])
        return normed, residual


class StandardLayerNorm:
    """Layer normalisation: x [T, size] -> [T, size]."""

    def __init__(self, ctx: Context, spec: LayerNorm, weights: Mapping[str, Any]) -> None:
        self._norm = ctx.bind(ops.layer_norm, size=spec.size, **norm_facts(spec.eps, spec.offset))
        self._names = tuple(name for name in ("weight", "bias") if name in weights)
        self.specs = {name: ParamSpec(weights[name], ctx.dtype) for name in self._names}

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        return self._norm(x, *(p[name] for name in self._names))  # p is nothing where it has no weights

    def add(self, p: Mapping[str, Any], x: Array, residual: Array | None) -> tuple[Array, Array]:
        """As RMSNorm.add."""
        total = x if residual is None else x + residual
        return self(p, total), total


class ScaleLayer:
    """x [T, size] -> [T, size], each value by its own weight."""

    def __init__(self, ctx: Context, spec: Scale, weights: Mapping[str, Any]) -> None:
        self._by, self._less, self._more = spec.by, "less" in weights, "more" in weights
        self.specs = {name: ParamSpec(w, ctx.dtype) for name, w in weights.items()}

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        weight = p["weight"]
        x = x.to(torch.float32) * self._by
        x = x + p["more"] if self._more else x
        return ((x - p["less"] if self._less else x) * weight).to(weight.dtype)

    def add(self, p: Mapping[str, Any], x: Array, residual: Array | None) -> tuple[Array, Array]:
        """As RMSNorm.add."""
        total = x if residual is None else x + residual
        return self(p, total), total


class HeadLayerNorm:
    """Layer normalisation of each head in float32: x [T, heads * n] -> the same shape. The weight has n values for each head,
    as has the bias of `HeadNorm.biased`, or the heads share n values of each (`HeadNorm.shared`). `HeadNorm.apart`: RMSNorm
    instead."""

    def __init__(self, ctx: Context, spec: HeadNorm, head_dim: int, weights: Mapping[str, Any]) -> None:
        self._head_dim, self._eps, self._mean = head_dim, spec.eps, spec.mean
        tensors = len(weights["weight"].sources)  # one, which is divided, or one for each head, which are not
        apart = weights["weight"].shard is None and not spec.shared
        self._parts = HeadParts(ctx.mesh.tensor, tensors) if apart else None
        self.specs = {name: ParamSpec(w, ctx.dtype) for name, w in weights.items()}

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        weight = p["weight"] if self._parts is None else self._parts.part(p["weight"])
        weight = weight.reshape(-1, self._head_dim).to(torch.float32)
        wide = x.unflatten(-1, (-1, self._head_dim)).to(torch.float32)
        wide = wide - wide.mean(-1, keepdim=True) if self._mean else wide
        wide = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self._eps) * weight
        if "bias" in p:
            wide = wide + p["bias"].reshape(-1, self._head_dim).to(torch.float32)
        return wide.to(x.dtype).flatten(-2)


class PairRMSNorm:
    """Embeddings and hidden states [T, size] of pairs -> [T, 2 * size]."""

    def __init__(self, ctx: Context, spec: PairNorm, weights: Mapping[str, Any]) -> None:
        self._token, self._hidden = (
            RMSNorm(ctx, each, weights[k]) for k, each in (("token", spec.token), ("hidden", spec.hidden))
        )
        self._normed = spec.normed
        self.specs = {"token": self._token.specs, "hidden": self._hidden.specs}

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        raise TypeError("PairNorm: a pair has two parts")

    def add(self, p: Mapping[str, Any], x: Array, residual: Array | None) -> tuple[Array, Array]:
        """x: embeddings. residual: hidden states. Returns the layer's input, and its residual stream."""
        assert residual is not None
        hidden = self._hidden(p["hidden"], residual)
        return torch.cat([self._token(p["token"], x), hidden], -1), hidden if self._normed else residual


class ScaledRMSNorm:
    """x [T, size] -> [T, size], each value times 1 + its weight before the norm."""

    def __init__(self, ctx: Context, spec: ScaledNorm, weights: Mapping[str, Any]) -> None:
        self._norm = ctx.bind(ops.rms_norm, size=spec.size, eps=spec.eps)
        self.specs = {name: ParamSpec(w, ctx.dtype) for name, w in weights.items()}

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        return self._norm((x.to(torch.float32) * (1 + p["weight"].to(torch.float32))).to(x.dtype))

    def add(self, p: Mapping[str, Any], x: Array, residual: Array | None) -> tuple[Array, Array]:
        """As RMSNorm.add."""
        total = x if residual is None else x + residual
        return self(p, total), total


class GatedRMSNorm:
    """x [T, size] -> [T, size], the norm times a gate that reads it."""

    def __init__(self, ctx: Context, spec: GatedNorm, weights: Mapping[str, Any]) -> None:
        self._norm, self._factor = RMSNorm(ctx, Norm("", spec.size, spec.eps, spec.offset), weights["norm"]), spec.factor
        self._down, self._up = (Product(ctx, weights[key]["weight"]) for key in ("down", "up"))
        self.specs: dict[str, Any] = {
            "norm": self._norm.specs, "down": {"weight": self._down.spec}, "up": {"weight": self._up.spec}
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        return self._gate(p, self._norm(p["norm"], x))

    def add(self, p: Mapping[str, Any], x: Array, residual: Array | None) -> tuple[Array, Array]:
        """As RMSNorm.add."""
        normed, total = self._norm.add(p["norm"], x, residual)
        return self._gate(p, normed), total

    def _gate(self, p: Mapping[str, Any], x: Array) -> Array:
        gate = self._up(silu(self._down(x, p["down"]["weight"], None)), p["up"]["weight"], None)
        gate = sigmoid(gate.to(torch.float32))
        return (x * (gate if self._factor == 1.0 else gate * self._factor)).to(x.dtype)


class DenseLayerNorm:
    """x [T, size] -> [T, size]: a linear layer, an activation and a norm."""

    def __init__(self, ctx: Context, spec: DenseNorm, weights: Mapping[str, Any]) -> None:
        dense = weights["dense"]
        self._dense = Product(ctx, dense["weight"])
        self._act = ctx.bind(ops.activation, act=spec.act, size=spec.norm.size)
        self._norm = StandardLayerNorm(ctx, spec.norm, weights["norm"])
        self._before = None if spec.before is None else StandardLayerNorm(ctx, spec.before, weights["before"])
        self.specs: dict[str, Any] = {"dense": {"weight": self._dense.spec}, "norm": self._norm.specs}
        if "bias" in dense:
            self.specs["dense"]["bias"] = ParamSpec(dense["bias"], ctx.dtype)
        if self._before is not None:
            self.specs["before"] = self._before.specs

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        x = x if self._before is None else self._before(p["before"], x)
        return self._norm(p["norm"], self._act(self._dense(x, p["dense"]["weight"], p["dense"].get("bias"))))

    def add(self, p: Mapping[str, Any], x: Array, residual: Array | None) -> tuple[Array, Array]:
        """As RMSNorm.add."""
        total = x if residual is None else x + residual
        return self(p, total), total


class NestedLayerNorm:
    """x, residual [T, size] -> [T, size]: layer normalisation of the residual and the normalised sum."""

    def __init__(self, ctx: Context, spec: NestedNorm, weights: Mapping[str, Any]) -> None:
        self._inner, self._outer = (
            StandardLayerNorm(ctx, each, weights[key]) for key, each in (("inner", spec.inner), ("outer", spec.outer))
        )
        self.specs = {"inner": self._inner.specs, "outer": self._outer.specs}

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        raise TypeError("NestedNorm: it reads a part's output and the residual stream")

    def add(self, p: Mapping[str, Any], x: Array, residual: Array | None) -> tuple[Array, Array]:
        """As RMSNorm.add."""
        assert residual is not None
        return self._outer.add(p["outer"], self._inner.add(p["inner"], x, residual)[0], residual)


BoundNorm = (
    RMSNorm | StandardLayerNorm | ScaleLayer | PairRMSNorm | ScaledRMSNorm | GatedRMSNorm | DenseLayerNorm | NestedLayerNorm
)
_KINDS: Mapping[type, Callable[..., BoundNorm]] = {
    LayerNorm: StandardLayerNorm,
    Scale: ScaleLayer,
    PairNorm: PairRMSNorm,
    Norm: RMSNorm,
    ScaledNorm: ScaledRMSNorm,
    GatedNorm: GatedRMSNorm,
    DenseNorm: DenseLayerNorm,
    NestedNorm: NestedLayerNorm,
}


def build_norm(ctx: Context, spec: AnyNorm, weights: Mapping[str, Any]) -> BoundNorm:
    """The norm of a declaration."""
    return _KINDS[type(spec)](ctx, spec, weights)


def normalize_heads(x: Array, eps: float, weight: Array, bias: Array | None = None) -> Array:
    """Layer normalisation of each head, f32[T, heads, n]. weight, bias f32[heads * n]."""
    apart = x - x.mean(-1, keepdim=True)
    scaled = apart * torch.rsqrt((apart * apart).mean(-1, keepdim=True) + eps) * weight.view(x.shape[1:])
    return scaled if bias is None else scaled + bias.view(x.shape[1:])
