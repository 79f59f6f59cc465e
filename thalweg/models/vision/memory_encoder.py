"""The audio encoder of Fun-ASR-Nano: stacked spectra in, a vector for each placeholder out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import Array, Params
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.layers.embedding import sine_table
from thalweg.models.vision.activation import activate_clip
from thalweg.models.vision.bound_parts import BoundParts, Parts
from thalweg.models.vision.clip_encoder import ClipEncoder


class MemoryEncoder(ClipEncoder):
    def __init__(self, ctx: Context, s: spec.MemoryEncoderSpec, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        self._parts = BoundParts(ctx, weights, spec.LayerNorm("", s.encoder[0].hidden, s.encoder[0].eps))
        self.specs: dict[str, Any] = self._parts.specs

    def enter(self, params: Params, clip: Array) -> Array:
        """As of `ClipEncoder`. Positions count from 1."""
        first = self.spec.encoder[0]
        x = clip.T.contiguous().to(self._dtype) * first.hidden**0.5
        return x + sine_table(1 + len(x), first.inputs, first.inputs // 2 - 1, self._dtype)[1:].to(x.device)

    def run_layer(self, i: int, params: Params, x: Array, places: Any) -> Array:
        return self._run(self.spec.encoder[i], f"/layers/{i}", params["layers"][i], x)

    def finish(self, params: Params, x: Array, frames: Frames) -> Array:
        x = activate_clip(self._parts.linear("/one", params["one"], x), self.spec.act)
        x = self._parts.linear("/two", params["two"], x)
        for i, layer in enumerate(self.spec.adaptor):
            x = self._run(layer, f"/adaptor/{i}", params["adaptor"][i], x)
        return x.to(torch.float32)

    def _run(self, s: spec.MemoryLayer, at: str, p: Parts, x: Array) -> Array:
        n = len(x)
        q, k, v = self._parts.linear(f"{at}/qkv", p["qkv"], _normalize(p["norm1"], x, s.eps)).chunk(3, -1)
        heads = (each.reshape(n, s.heads, -1).transpose(0, 1)[None] for each in (q, k, v))
        y = functional.scaled_dot_product_attention(*heads)[0].transpose(0, 1).reshape(n, -1)
        y = self._parts.linear(f"{at}/out", p["out"], y)
        if s.taps:
            before = (s.taps - 1) // 2
            padded = functional.pad(v.T, (before, s.taps - 1 - before))[None]
            y = y + v + functional.conv1d(padded, p["memory"], groups=s.hidden)[0].T
        x = x + y if s.inputs == s.hidden else y
        y = activate_clip(self._parts.linear(f"{at}/up", p["up"], _normalize(p["norm2"], x, s.eps)), s.act)
        x = x + self._parts.linear(f"{at}/down", p["down"], y)
        return _normalize(p["last"], x, s.eps) if s.normed else x


def _normalize(p: Parts, x: Array, eps: float) -> Array:
    return functional.layer_norm(x, x.shape[1:], p["scale"], p["shift"], eps)
