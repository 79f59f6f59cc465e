"""CLIP's layers behind SAM, as DeepSeek-OCR has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import BoundParts

Parts = Mapping[str, Any]


class ClipReader:
    """x [views, 1 + vectors, 2 * hidden]: the stream of the layers, and the vectors that entered."""

    def __init__(self, ctx: Context, s: spec.ClipReaderSpec, weights: Parts) -> None:
        self._spec = s
        self._parts = BoundParts(ctx, weights, spec.LayerNorm("", s.hidden, s.eps))
        self.specs = self._parts.specs

    def join(self, p: Parts, x: Array) -> Array:
        """x: [views, vectors, hidden]."""
        whole = p["whole"].expand(len(x), 1, -1)
        stream = torch.cat([whole, x], 1) + self._places(p["places"], round(x.shape[1] ** 0.5))
        return torch.cat([self._normalize(p["enter"], stream), torch.cat([torch.zeros_like(whole), x], 1)], -1)

    def leave(self, p: Parts, x: Array) -> Array:
        return x[:, 1:]

    def run(self, p: Parts, x: Array, i: int) -> Array:
        """Layer i."""
        at, layer = f"/layers/{i}", p["layers"][i]
        x, entered = x.chunk(2, -1)
        x = x + self._attend(at, layer, self._normalize(layer["norm1"], x))
        y = self._parts.linear(f"{at}/up", layer["up"], self._normalize(layer["norm2"], x).flatten(0, 1))
        y = self._parts.linear(f"{at}/down", layer["down"], activate(y, "gelu_quick"))
        return torch.cat([x + y.view(x.shape), entered], -1)

    def _attend(self, at: str, p: Parts, x: Array) -> Array:
        views, length, hidden = x.shape
        qkv = self._parts.linear(f"{at}/qkv", p["qkv"], x.reshape(-1, hidden))
        q, k, v = qkv.view(views, length, 3, self._spec.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, hidden)
        return self._parts.linear(f"{at}/out", p["out"], y).view(x.shape)

    def _places(self, table: Array, side: int) -> Array:
        """[1 + side * side, hidden], stretched from those that are stored."""
        grid = self._spec.grid
        if side == grid:
            return table
        rest = table[1:].view(1, grid, grid, -1).permute(0, 3, 1, 2).float()
        rest = functional.interpolate(rest, (side, side), mode="bicubic", antialias=True)
        return torch.cat([table[:1], rest.permute(0, 2, 3, 1).reshape(side * side, -1).to(table.dtype)])

    def _normalize(self, p: Parts, x: Array) -> Array:
        return functional.layer_norm(x, x.shape[-1:], p["scale"], p["shift"], self._spec.eps)
