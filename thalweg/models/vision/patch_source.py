"""A plain image encoder for cross-attention (ViT, DeiT). It runs within the first step of a sequence, an image at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.flow import SourceVectors
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.spec.tile_source import HEADER
from thalweg.models.vision.encoder_layer import EncoderLayer
from thalweg.models.weights import ParamSpec

Parts = Mapping[str, Any]


class PatchEncoder:
    """Arrays of images -> vectors. Holds no tensors: parameters are passed."""

    def __init__(self, ctx: Context, s: spec.PatchSource, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are `EncoderLayer`s."""
        ctx = ctx.of_encoder()
        self._spec, self._dtype = s, getattr(torch, ctx.dtype)
        self._patch, self._norm = Linear(ctx, weights["patch"]), build_norm(ctx, s.norm, weights["norm"])
        self._layers = [EncoderLayer(ctx, each, weights["layers"][i]) for i, each in enumerate(s.layers)]
        self.specs: dict[str, Any] = {
            "patch": self._patch.specs, "norm": self._norm.specs, "places": ParamSpec(weights["places"], ctx.dtype),
            "learned": {i: ParamSpec(each, ctx.dtype) for i, each in weights["learned"].items()},
            "layers": {i: each.specs for i, each in enumerate(self._layers)},
        }  # fmt: skip
        self._projector = Linear(ctx, weights["projector"]) if s.projector else None
        if self._projector is not None:
            self.specs["projector"] = self._projector.specs

    def __call__(self, p: Parts, features: Array) -> SourceVectors:
        """features f32[N, rows, width] of N images, as of `TileEncoder`: one tile each."""
        begins = tuple(int(begin) for begin in features[:, 0, HEADER - 1].tolist())
        result = torch.cat([self._one(p, each[1:]) for each in features])
        return SourceVectors(result, (self._spec.sources,) * len(features), begins)

    def _one(self, p: Parts, value: Array) -> Array:
        """value [side * side, width] -> [sources, outputs]."""
        x = self._patch(p["patch"], value.to(self._dtype), None)
        x = torch.cat([*(p["learned"][i][0] for i in range(len(self._spec.learned))), x]) + p["places"][0]
        for i, layer in enumerate(self._layers):
            x = layer(p["layers"][i], x, attend)
        x = self._norm(p["norm"], x)
        return x if self._projector is None else self._projector(p["projector"], x, None)


def attend(q: Array, k: Array, v: Array) -> Array:
    """As `encoder_layer.Attend`."""
    q, k, v = (each.transpose(0, 1) for each in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v).transpose(0, 1)
