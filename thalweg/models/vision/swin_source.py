"""Swin (Donut) for cross-attention, in torch's operations. It runs within the first step of a sequence, an image at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.flow import SourceVectors
from thalweg.models.spec.tile_source import HEADER
from thalweg.models.weights import ParamSpec, Weight

Parts = Mapping[Any, Any]
APART = -100.0
"""Added to scores of patches that only the shift brings into one window."""


class SwinEncoder:
    """Arrays of images -> vectors. Holds no tensors: parameters are passed."""

    def __init__(self, ctx: Context, s: spec.SwinSource, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        self._spec, self._dtype = s, getattr(torch, (ctx.encoders or ctx).dtype)
        self.specs: dict[str, Any] = _declare(ctx, weights)

    def __call__(self, p: Parts, features: Array) -> SourceVectors:
        """features f32[N, 1 + channels * rows, columns] of N images: a row of numbers (`HEADER`), then the pixels."""
        begins = tuple(int(begin) for begin in features[:, 0, HEADER - 1].tolist())
        result = torch.cat([self._one(p, each[1:]) for each in features])
        return SourceVectors(result, (self._spec.sources,) * len(features), begins)

    def _one(self, p: Parts, pixels: Array) -> Array:
        s = self._spec
        x = pixels.reshape(1, s.channels, s.rows, s.columns).to(self._dtype)
        x = functional.conv2d(x, p["patch"]["weight"], p["patch"]["bias"], s.patch)[0].permute(1, 2, 0)
        x = functional.layer_norm(x, x.shape[-1:], p["norm"]["weight"], p["norm"]["bias"])
        for i, depth in enumerate(s.depths):
            stage = p["stages"][i]
            for j in range(depth):
                x = self._block(stage["blocks"][j], x, s.heads[i], s.window // 2 if j % 2 else 0)
            if "merge" in stage:
                x = functional.pad(x, (0, 0, 0, x.shape[1] % 2, 0, x.shape[0] % 2))
                x = torch.cat([x[row::2, column::2] for column in range(2) for row in range(2)], -1)
                x = functional.layer_norm(x, x.shape[-1:], stage["merge_norm"]["weight"], stage["merge_norm"]["bias"])
                x = functional.linear(x, stage["merge"]["weight"])
        return x.flatten(0, 1)

    def _block(self, p: Parts, x: Array, heads: int, shift: int) -> Array:
        """x [rows, columns, width]. A stage no larger than a window is not shifted."""
        shift = 0 if min(x.shape[:2]) <= self._spec.window else shift
        x = x + self._attend(p, self._normalize(p["norm1"], x), heads, shift)
        y = activate(_apply(p["up"], self._normalize(p["norm2"], x)), self._spec.act)
        return x + _apply(p["down"], y)

    def _attend(self, p: Parts, x: Array, heads: int, shift: int) -> Array:
        """Windows at the edges are filled up with zeros, which take part in attention."""
        size, (rows, columns, width) = self._spec.window, x.shape
        x = functional.pad(x, (0, 0, 0, -columns % size, 0, -rows % size))
        whole = x.shape[:2]
        x = _split(torch.roll(x, (-shift, -shift), (0, 1)), size)
        q, k, v = (_apply(p[key], x).unflatten(-1, (heads, -1)).transpose(1, 2) for key in ("query", "key", "value"))
        mask = p["places"][_distances(size, x.device)].permute(2, 0, 1).unsqueeze(0)
        if shift:
            mask = mask + _apart(whole[0], whole[1], size, shift, x.device).unsqueeze(1).to(x.dtype)
        x = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        x = (
            _apply(p["out"], x)
            .view(whole[0] // size, whole[1] // size, size, size, width)
            .transpose(1, 2)
            .reshape(*whole, width)
        )
        return torch.roll(x, (shift, shift), (0, 1))[:rows, :columns]

    def _normalize(self, p: Parts, x: Array) -> Array:
        return functional.layer_norm(x, x.shape[-1:], p["weight"], p["bias"], self._spec.eps)


def _split(x: Array, size: int) -> Array:
    """[rows, columns, n] -> [windows, size * size, n]."""
    rows, columns, n = x.shape
    return x.view(rows // size, size, columns // size, size, n).transpose(1, 2).reshape(-1, size * size, n)


def _distances(size: int, device: Any) -> Array:
    """i64[size * size, size * size]: rows of the table of position biases."""
    down, across = (each.flatten() for each in torch.meshgrid(*[torch.arange(size, device=device)] * 2, indexing="ij"))
    high, wide = (each[:, None] - each + size - 1 for each in (down, across))
    return high * (2 * size - 1) + wide


def _apart(rows: int, columns: int, size: int, shift: int, device: Any) -> Array:
    """f32[windows, size * size, size * size]: `APART` for patches of different regions, of which each axis has three."""
    down, across = (
        (at >= n - size).int() + (at >= n - shift).int() for n in (rows, columns) for at in [torch.arange(n, device=device)]
    )
    region = _split((down[:, None] * 3 + across).unsqueeze(-1), size)
    return (region != region.transpose(1, 2)).float() * APART


def _apply(p: Parts, x: Array) -> Array:
    return functional.linear(x, p["weight"], p.get("bias"))


def _declare(ctx: Context, part: Any) -> Any:
    if isinstance(part, Weight):
        return ParamSpec(part, ctx.dtype)
    return {key: _declare(ctx, each) for key, each in part.items()}
