"""The image encoder of BLIP-2 and InstructBLIP for a text encoder. It runs within the first step of a sequence, an image at a
time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.vision.encoder_layer import EncoderLayer
from thalweg.models.vision.patch_source import attend
from thalweg.models.vision.qformer import QFormer
from thalweg.models.vision.text_qformer import TextQFormer
from thalweg.models.weights import ParamSpec


class QueryImage:
    """Holds no tensors: parameters are passed."""

    def __init__(self, ctx: Context, s: spec.QueryImageSpec, weights: Mapping[str, Any]) -> None:
        self._spec, self._dtype = s, getattr(torch, ctx.dtype)
        self._patch, self._norm = Linear(ctx, weights["patch"]), build_norm(ctx, s.norm, weights["norm"])
        self._layers = [EncoderLayer(ctx, each, weights["layers"][i]) for i, each in enumerate(s.layers)]
        reads = TextQFormer if isinstance(s.reads, spec.TextQFormerSpec) else QFormer
        self._reads = reads(ctx, s.reads, weights["reads"])
        self.specs: dict[str, Any] = {
            "patch": self._patch.specs, "norm": self._norm.specs, "reads": self._reads.specs,
            **{key: ParamSpec(weights[key], ctx.dtype) for key in ("whole", "places")},
            "layers": {i: each.specs for i, each in enumerate(self._layers)},
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], pixels: Array) -> Array:
        """pixels f32[1 + n] of one image, the pixels along its edge before their values by channels -> [queries, outputs].
        If the Q-Former reads text, the number of its words follows, and their ids. Values behind the last are ignored."""
        s, (channels, high, wide) = self._spec, self._spec.kernel
        end = 1 + channels * (s.side * high) ** 2
        image = pixels[1:end].view(channels, s.side, high, s.side, wide)
        patches = image.permute(1, 3, 0, 2, 4).reshape(s.side**2, -1).to(self._dtype)
        x = torch.cat([p["whole"][0], self._patch(p["patch"], patches, None)]) + p["places"][0]
        for i, layer in enumerate(self._layers):
            x = layer(p["layers"][i], x, attend)
        x = self._norm(p["norm"], x)
        if isinstance(self._reads, TextQFormer):
            words = pixels[end + 1 : end + 1 + int(pixels[end])]
            return self._reads.read(p["reads"], x, words.to(torch.int32))
        return self._reads(p["reads"], x)
