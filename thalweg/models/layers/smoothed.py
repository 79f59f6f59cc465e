"""Smoothed keys, values and outputs, and attention with logits of distances (Inkling): see `spec.smoothed`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from thalweg.errors import ConfigError
from thalweg.hal import ops
from thalweg.hal.ops.conv import NONE
from thalweg.hal.ops.pointwise import sigmoid
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.layers.mlp import GatedMLP
from thalweg.models.layers.moe import Experts
from thalweg.models.layers.norm import RMSNorm
from thalweg.models.layers.recurrent import advance
from thalweg.models.weights import ParamSpec

KV, MIXER, FFN = range(3)
"""Arrays of `KeptTaps`."""


class KeptTaps:
    """Nothing is computed: parts of the layer write and read the state."""

    backend = None

    def __init__(self, ctx: Context, spec: declared.KeptTaps, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place = place
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        self.specs: dict[str, Any] = {}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> None:
        """x: ignored."""
        flow.taps = self._place


class Smoothing:
    """x [T, channels] -> x + its convolution over the last tokens."""

    def __init__(self, ctx: Context, weights: Mapping[str, Any], part: int) -> None:
        """part: the array of the state."""
        channels, _, taps = weights["weight"].shape(ctx.mesh.tensor.size)
        self._part, self._conv = part, ctx.bind(ops.causal_conv, act=NONE, channels=channels, taps=taps)
        self.specs = {"weight": ParamSpec(weights["weight"], ctx.dtype)}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        assert flow.taps is not None
        return x + advance(flow, flow.taps, self._part, partial(self._conv, x.contiguous(), p["weight"]))


class DistanceAttention:
    """x [T, hidden] -> [T, hidden]. Divided among ranks by heads."""

    backend = None

    def __init__(self, ctx: Context, spec: declared.DistanceAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        if ctx.kv_dtype not in ("", ctx.dtype):
            raise ConfigError(
                "kv_cache_dtype: this model's attention has logits of distances, and caches in the model's dtype only: remove "
                "the flag"
            )
        ctx.share(spec.kv_heads, "heads of keys and values")
        self._place, self._dim, self._grows = place, spec.head_dim, spec.grows
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts(ctx.block_tokens)
        self._in, self._out = Linear(ctx, weights["in"]), RowLinear(ctx, weights["out"])
        self._conv, self._smooth = Smoothing(ctx, weights["conv"], KV), Smoothing(ctx, weights["smooth"], MIXER)
        self._norms = {
            key: RMSNorm(ctx, declared.Norm("", spec.head_dim, spec.eps), weights[key]) for key in ("q_norm", "k_norm")
        }
        self._writes = [ctx.bind(ops.index_write, size=size) for size in self.spec.sizes]
        window = spec.window if spec.window < ctx.max_len else 0
        self._attend = ctx.bind(ops.distance_attention, scale=1 / spec.head_dim, window=window)
        self.specs: dict[str, Any] = {
            "in": self._in.specs, "out": self._out.specs, "conv": self._conv.specs, "smooth": self._smooth.specs,
            "profiles": {"weight": ParamSpec(weights["profiles"]["weight"], ctx.dtype)},
            **{key: norm.specs for key, norm in self._norms.items()},
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        batch, at = flow.batch, self._place
        table = batch.block_tables[at.group]
        q, k, v, near = self._in(p["in"], x, flow).split(self._in.outputs, -1)
        k, v = self._conv(p["conv"], torch.cat([k, v], -1), flow).chunk(2, -1)
        q, k = (
            self._norms[key](p[key], each.unflatten(-1, (-1, self._dim)).contiguous())
            for key, each in (("q_norm", q), ("k_norm", k))
        )
        near = near.unflatten(-1, (q.shape[1], -1))
        if self._grows is not None:
            alpha, n = self._grows
            more = 1 + alpha * torch.log(((batch.positions + 1).to(torch.float32) / n).clamp(min=1.0))[:, None, None]
            q, near = ((each.to(torch.float32) * more).to(each.dtype) for each in (q, near))
        caches = tuple(
            write(held, new.contiguous(), table, batch.token_seq, batch.positions, batch.slots)
            for write, held, new in zip(self._writes, flow.caches[at.layer], (k.flatten(1), v), strict=True)
        )
        flow.caches[at.layer] = caches
        out = self._attend(q, near, p["profiles"]["weight"], *caches, table, batch.token_seq, batch.positions)
        return self._smooth(p["smooth"], self._out(p["out"], out.flatten(1), flow), flow)


class SmoothedFFN:
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: declared.SmoothedFFN, weights: Mapping[str, Any]) -> None:
        kind: Any = GatedMLP if isinstance(spec.ffn, declared.MLP) else SinkExperts
        self._ffn, self._smooth = kind(ctx, spec.ffn, weights["ffn"]), Smoothing(ctx, weights["smooth"], FFN)
        self.specs: dict[str, Any] = {"ffn": self._ffn.specs, "smooth": self._smooth.specs}
        if spec.scale:
            self.specs["scale"] = {"weight": ParamSpec(weights["scale"]["weight"], "float32")}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        y = self._ffn(p["ffn"], x, flow)
        if "scale" in p:
            y = (y * p["scale"]["weight"]).to(x.dtype)
        return self._smooth(p["smooth"], y, flow)


class SinkExperts(Experts):
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: declared.SinkMoE, weights: Mapping[str, Any]) -> None:
        super().__init__(ctx, spec, weights)
        self._route, self._widens = partial(share_with_sinks, k=spec.top_k - spec.always, scale=spec.scale), True
        self.specs["gain"] = {"weight": ParamSpec(weights["gain"]["weight"], "float32")}

    def _select_experts(self, p: Mapping[str, Any], x: Array, flow: Flow) -> tuple[Array, Array]:
        ids, shares = super()._select_experts(p, x, flow)
        return ids, shares * p["gain"]["weight"]


def share_with_sinks(logits: Array, bias: Array, *, k: int, scale: float) -> tuple[Array, Array]:
    """`k` experts by sigmoid(logits) + bias, and all without a bias: logits f32[T, E], bias f32[B] of the first B experts ->
    (ids i32[T, k + E - B], weights f32[T, k + E - B]), their shares of the selected sigmoids, times scale."""
    value, selected = sigmoid(logits), bias.shape[0]
    best = torch.sort(value[:, :selected] + bias, dim=-1, descending=True, stable=True)[1][:, :k]
    sinks = torch.ones_like(logits[:, selected:], dtype=torch.int64).cumsum(1) - 1 + selected
    ids = torch.cat([best, sinks], 1)
    weights = value.gather(1, ids)
    total = weights[:, :1]
    for i in range(1, ids.shape[1]):  # in the same order in any batch
        total = total + weights[:, i : i + 1]
    return ids.to(torch.int32), weights / total * scale
