"""DaViT (Florence-2): an image's pixels in, vectors for a text encoder out, in torch's operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.weights import ParamSpec, Weight

EPS = 1e-5
Parts = Mapping[Any, Any]


class DaViT:
    """Holds no tensors: parameters are passed."""

    def __init__(self, ctx: Context, s: spec.DaViTSpec, weights: Parts) -> None:
        self._spec, self._dtype = s, getattr(torch, ctx.dtype)
        self.specs: dict[str, Any] = _declare(ctx, weights)

    def __call__(self, p: Parts, pixels: Array) -> Array:
        """pixels f32[1 + n] of one image, the pixels along its edge before their values -> [vectors, outputs]. Values behind
        the last are ignored."""
        s, side = self._spec, int(pixels[0])
        x = pixels[1 : 1 + s.channels * side * side].view(1, s.channels, side, side).to(self._dtype)
        for i, stage in enumerate(s.stages):
            x = self._stage(p["stages"][i], x, stage)
        rows, columns = x.shape[2:]
        across, down = p["columns"][:columns], p["rows"][:rows]
        places = torch.cat([across.expand(rows, -1, -1), down.unsqueeze(1).expand(-1, columns, -1)], -1)
        x = (x[0].permute(1, 2, 0) + places).flatten(0, 1)
        x = x + torch.arange(x.shape[1], device=x.device) % 2  # sines and cosines of time 0
        x = functional.linear(torch.cat([x.mean(0, keepdim=True), x]), p["projection"])
        return _normalize(p["norm"], x)

    def _stage(self, p: Parts, x: Array, stage: spec.DaViTStage) -> Array:
        """x [1, channels, rows, columns] -> [1, width, fewer, fewer]."""
        if stage.normed_first:
            x = _normalize(p["norm"], x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = functional.conv2d(x, p["conv"]["weight"], p["conv"]["bias"], stage.stride, stage.padding)
        if not stage.normed_first:
            x = _normalize(p["norm"], x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        for j in range(stage.depth):
            x = self._block(p["blocks"][j]["spatial"], x, stage, within=True)
            x = self._block(p["blocks"][j]["channel"], x, stage, within=False)
        return x

    def _block(self, p: Parts, x: Array, stage: spec.DaViTStage, within: bool) -> Array:
        """within: attention of patches within windows; else of channels."""
        x = _convolve(p["conv1"], x)
        y = _normalize(p["norm1"], x)
        x = x + (self._attend_windows(p, y, stage.heads) if within else _attend_channels(p, y, stage.groups))
        x = _convolve(p["conv2"], x.permute(0, 3, 1, 2))
        y = activate(_apply(p["up"], _normalize(p["norm2"], x)), self._spec.act)
        return (x + _apply(p["down"], y)).permute(0, 3, 1, 2)

    def _attend_windows(self, p: Parts, x: Array, heads: int) -> Array:
        """x [1, rows, columns, width]. Windows at the edges are filled up with zeros, which take part in attention."""
        size, (_, rows, columns, width) = self._spec.window, x.shape
        x = functional.pad(x, (0, 0, 0, -columns % size, 0, -rows % size))
        high, wide = x.shape[1] // size, x.shape[2] // size
        x = x.view(high, size, wide, size, width).transpose(1, 2).reshape(-1, size * size, width)
        q, k, v = _apply(p["qkv"], x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = _apply(p["out"], x).view(high, wide, size, size, width).transpose(1, 2)
        return x.reshape(1, high * size, wide * size, width)[:, :rows, :columns]


def _attend_channels(p: Parts, x: Array, groups: int) -> Array:
    """x [1, rows, columns, width]: each channel attends to those of its group."""
    flat = x.flatten(1, 2)
    q, k, v = _apply(p["qkv"], flat).unflatten(-1, (3, groups, -1)).permute(2, 0, 3, 4, 1).unbind(0)
    result = functional.scaled_dot_product_attention(q, k, v, scale=flat.shape[1] ** -0.5)
    return _apply(p["out"], result.permute(0, 3, 1, 2).flatten(2)).view(x.shape)


def _convolve(p: Parts, x: Array) -> Array:
    """x [1, width, rows, columns] -> [1, rows, columns, width]: x plus a convolution of each channel."""
    x = functional.conv2d(x, p["weight"], p["bias"], padding=1, groups=x.shape[1]) + x
    return x.permute(0, 2, 3, 1)


def _apply(p: Parts, x: Array) -> Array:
    return functional.linear(x, p["weight"], p.get("bias"))


def _normalize(p: Parts, x: Array) -> Array:
    return functional.layer_norm(x, x.shape[-1:], p["weight"], p["bias"], EPS)


def _declare(ctx: Context, part: Any) -> Any:
    if isinstance(part, Weight):
        return ParamSpec(part, ctx.dtype)
    return {key: _declare(ctx, each) for key, each in part.items()}
