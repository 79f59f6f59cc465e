"""Attention of encoders of long texts. A step of such an encoder is one text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.attention import bucket_table
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.weights import ParamSpec


class _LongAttention:
    """The projections."""

    backend = None
    """It keeps no keys, so no attention backend plans for it."""

    def __init__(self, ctx: Context, spec: Any, weights: Mapping[str, Any]) -> None:
        self._spec, self._qkv, self._out = spec, Linear(ctx, weights["qkv"]), Linear(ctx, weights["out"])
        self.specs: dict[str, Any] = {"qkv": self._qkv.specs, "out": self._out.specs}

    def _heads(self, p: Mapping[str, Any], x: Array) -> list[Array]:
        """q, k and v of x [T, hidden]: [heads, T, head_dim] each."""
        parts = self._qkv(p["qkv"], x, None).split(self._qkv.outputs, dim=-1)
        return [part.unflatten(-1, (self._spec.heads, -1)).transpose(0, 1) for part in parts]

    def _join(self, p: Mapping[str, Any], parts: list[Array]) -> Array:
        """parts [heads, n, head_dim] of consecutive rows -> [T, hidden]."""
        return self._out(p["out"], torch.cat(parts, 1).transpose(0, 1).flatten(1), None)


class SummaryAttention(_LongAttention):
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: declared.SummaryAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        super().__init__(ctx, spec, weights)
        self._norm = build_norm(ctx, spec.norm, weights["norm"])
        self.specs["norm"] = self._norm.specs
        self.specs |= {key: ParamSpec(weights[key], "float32") for key in ("relative", "summary_bias")}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        n, window, runs = len(x), self._spec.window, len(x) // self._spec.run
        at = torch.arange(n, device=x.device)
        run = (at // self._spec.run).clamp(max=runs - 1)
        (q, k, v), sides = self._heads(p, x), self._summaries(p, x, run, runs) if runs else None
        parts = []
        for a in range(0, n, window):
            rows, keys = at[a : a + window], at[max(0, a - window + 1) : a + 2 * window - 1]
            apart = keys[None] - rows[:, None]
            bias = self._bias(p["relative"], apart).masked_fill(apart.abs() >= window, -torch.inf)
            here = slice(int(keys[0]), int(keys[-1]) + 1)
            kk, vv = k[:, here], v[:, here]
            if sides is not None:
                other = torch.arange(runs, device=x.device)[None] - run[a : a + window, None]
                bias = torch.cat([bias, self._bias(p["summary_bias"], other)], -1)
                kk, vv = (torch.cat([own, side], 1) for own, side in zip((kk, vv), sides, strict=True))
            parts.append(_attend(q[:, a : a + window], kk, vv, self._spec.scale, bias))
        return self._join(p, parts)

    def _summaries(self, p: Mapping[str, Any], x: Array, run: Array, runs: int) -> list[Array]:
        """Keys and values of each run's summary: [heads, runs, head_dim]."""
        total = torch.zeros((runs, x.shape[1]), dtype=torch.float32, device=x.device).index_add(0, run, x.to(torch.float32))
        return self._heads(p, self._norm(p["norm"], total.to(x.dtype)))[1:]

    def _bias(self, table: Array, apart: Array) -> Array:
        """f32[heads, rows, keys]: of distances apart i64[rows, keys]. table f32[buckets, heads]."""
        far, buckets = self._spec.relative.distance, self._spec.relative.buckets
        return table[bucket_table(buckets, far, False, apart.device)[apart.clamp(-far, far) + far]].permute(2, 0, 1)


class GlobalLocalAttention(_LongAttention):
    """x [globals + T, hidden] -> the same shape."""

    def __init__(self, ctx: Context, spec: declared.GlobalLocalAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        super().__init__(ctx, spec, weights)
        self._norms = {key: build_norm(ctx, getattr(spec, key), weights[key]) for key in ("norm", "global_norm")}
        self.specs |= {key: norm.specs for key, norm in self._norms.items()}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        spec, first = self._spec, self._spec.globals
        normed = [self._norms[key](p[key], rows) for key, rows in (("global_norm", x[:first]), ("norm", x[first:]))]
        q, k, v = self._heads(p, torch.cat(normed))
        scale = spec.head_dim**-0.5
        parts, end = [_attend(q[:, :first], k, v, scale)], first
        while end < len(x):
            begin, end = end, end + (spec.block // 2 if spec.staggered and end == first else spec.block)
            keys, values = (torch.cat([each[:, :first], each[:, begin:end]], 1) for each in (k, v))
            parts.append(_attend(q[:, begin:end], keys, values, scale))
        return self._join(p, parts)


def _attend(q: Array, k: Array, v: Array, scale: float, bias: Array | None = None) -> Array:
    """softmax(q k^T * scale + bias) v of [heads, n, head_dim], in float32."""
    query, key, value = (each.to(torch.float32).unsqueeze(0) for each in (q, k, v))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)[0].to(q.dtype)
