"""The encoder of DeepSeek-OCR 2 behind SAM: learned queries read a view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import BoundParts

Parts = Mapping[str, Any]


class QueryEncoder:
    """x [views, vectors + queries, hidden], with as many queries as the view has vectors."""

    def __init__(self, ctx: Context, s: spec.QueryEncoderSpec, weights: Parts) -> None:
        self._spec = s
        self._parts = BoundParts(ctx, weights, spec.LayerNorm("", s.hidden, s.eps))
        self.specs = self._parts.specs

    def join(self, p: Parts, x: Array) -> Array:
        """The queries behind the vectors."""
        i = next(i for i, (most, _) in enumerate(self._spec.queries) if x.shape[1] <= most)
        return torch.cat([x, p["queries"][i].expand(len(x), -1, -1)], 1)

    def leave(self, p: Parts, x: Array) -> Array:
        """The outputs of the queries, normalised."""
        return self._normalize(p["norm"], x[:, x.shape[1] // 2 :])

    def run(self, p: Parts, x: Array, i: int) -> Array:
        """Layer i."""
        at, layer = f"/layers/{i}", p["layers"][i]
        x = x + self._attend(at, layer, self._normalize(layer["norm1"], x))
        y = self._parts.linear(f"{at}/up", layer["up"], self._normalize(layer["norm2"], x).flatten(0, 1))
        gate, value = y.chunk(2, -1)
        return x + self._parts.linear(f"{at}/down", layer["down"], functional.silu(gate) * value).view(x.shape)

    def _attend(self, at: str, p: Parts, x: Array) -> Array:
        s, (views, length, hidden) = self._spec, x.shape
        each = s.hidden // s.heads
        qkv = self._parts.linear(f"{at}/qkv", p["qkv"], x.flatten(0, 1)).view(views, length, -1, each).transpose(1, 2)
        q, k, v = qkv.split([s.heads, s.kv_heads, s.kv_heads], 1)
        q, k = self._turn(q), self._turn(k)
        k, v = (part.repeat_interleave(s.heads // s.kv_heads, 1) for part in (k, v))
        place = torch.arange(length, device=x.device)
        sees = (place[:, None] >= place) | (place.clamp(max=length // 2)[:, None] < length // 2) & (place < length // 2)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=sees)
        return self._parts.linear(f"{at}/out", p["out"], y.transpose(1, 2).reshape(-1, hidden)).view(x.shape)

    def _turn(self, x: Array) -> Array:
        """Rotary positions, whose first half of a head is turned with its second."""
        half = x.shape[-1] // 2
        every = self._spec.theta ** -(torch.arange(half, device=x.device, dtype=torch.float32) / half)
        angle = torch.arange(x.shape[2], device=x.device, dtype=torch.float32)[:, None] * every
        cos, sin = angle.cos(), angle.sin()
        first, second = x.float().chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)

    def _normalize(self, weight: Array, x: Array) -> Array:
        return functional.rms_norm(x.float(), x.shape[-1:], None, self._spec.eps).to(x.dtype) * weight
