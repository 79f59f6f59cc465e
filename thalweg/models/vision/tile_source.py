"""The encoder of images for cross-attention (Mllama). It runs within the first step of a sequence, an image at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.flow import SourceVectors
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.spec.tile_source import HEADER, MULTIPLE
from thalweg.models.vision.encoder_layer import EncoderLayer
from thalweg.models.weights import ParamSpec, Weight

Parts = Mapping[str, Any]


class TileEncoder:
    """Arrays of images -> the vectors of their tiles. Holds no tensors: parameters are passed."""

    def __init__(self, ctx: Context, s: spec.TileSource, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers attend in another way."""
        ctx = ctx.of_encoder()
        self._spec, self._dtype = s, getattr(torch, ctx.dtype)
        norm = spec.LayerNorm("", s.hidden, s.eps)
        self._patch, self._projector = Linear(ctx, weights["patch"]), Linear(ctx, weights["projector"])
        self._norms = {key: build_norm(ctx, norm, weights[key]) for key in ("pre_norm", "post_norm")}
        self._layers = [EncoderLayer(ctx, each, weights["layers"][i]) for i, each in enumerate(s.layers)]
        self._last = [EncoderLayer(ctx, each, weights["last"][i]) for i, each in enumerate(s.last)]
        own = {key: weights[key] for key in ("whole", "places", "gate", "tile_places", "pre_tile", "post_tile")}
        self.specs: dict[str, Any] = {
            **{key: _declare(ctx, part) for key, part in own.items()},
            **{key: each.specs for key, each in self._norms.items()},
            "patch": self._patch.specs, "projector": self._projector.specs,
            "layers": {i: each.specs for i, each in enumerate(self._layers)},
            "last": {i: each.specs for i, each in enumerate(self._last)},
        }  # fmt: skip

    def __call__(self, p: Parts, features: Array) -> SourceVectors:
        """features f32[N, rows, width] of N images: a row of numbers (`HEADER`), then a row of values for each patch. Without
        a tile it is no image, and there are no vectors."""
        heads = [[int(number) for number in each] for each in features[:, 0, :HEADER].tolist()]
        result = [
            self._one(p, each[1 : 1 + tiles * self._spec.side**2], tiles, arrangement)
            for each, (tiles, arrangement, _) in zip(features, heads, strict=True)
            if tiles
        ]
        vectors = torch.cat(result) if result else features.new_zeros((0, self._spec.outputs), dtype=self._dtype)
        lengths = tuple(tiles * self._spec.patches for tiles, *_ in heads)
        return SourceVectors(vectors, lengths, tuple(begin for *_, begin in heads))

    def _one(self, p: Parts, value: Array, tiles: int, arrangement: int) -> Array:
        """value [tiles * side * side, width] -> [tiles * patches, outputs]."""
        s, fill = self._spec, -self._spec.patches % MULTIPLE
        x = self._patch(p["patch"], value.to(self._dtype), None)
        x = functional.pad(x, (0, 0, 0, (s.tiles - tiles) * s.side**2)).view(s.tiles, -1, s.hidden)
        x = x + self._tile_rows(p["pre_tile"]["table"], p["pre_tile"]["gate"], arrangement, 1)
        x = torch.cat([p["whole"].expand(s.tiles, 1, -1), x], 1)
        x = x + (1 - torch.tanh(p["gate"])) * p["places"]
        x = x + self._tile_rows(p["tile_places"], p["gate"], arrangement, s.patches)
        x = functional.pad(self._norms["pre_norm"](p["pre_norm"], x.flatten(0, 1)).view(x.shape), (0, 0, 0, fill))
        real = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        real[:tiles, : s.patches] = True
        order = torch.argsort(~real.flatten(), stable=True)  # those that are shown, then the rest
        count, x = tiles * s.patches, x.flatten(0, 1).index_select(0, order)
        read, attend = dict[int, Array](), partial(_attend, count)
        for i, layer in enumerate(self._layers):
            x = layer(p["layers"][i], x, attend)
            if i in s.reads:
                read[i] = x[:count]
        x = self._norms["post_norm"](p["post_norm"], x)
        rows = self._tile_rows(p["post_tile"]["table"], p["post_tile"]["gate"], arrangement, 1)
        x = x + rows.expand(-1, s.patches + fill, -1).flatten(0, 1).index_select(0, order)
        for i, layer in enumerate(self._last):
            x = layer(p["last"][i], x, attend)
        x = torch.cat([x[:count], torch.stack([read[i] for i in s.reads], -1).flatten(1)], 1)
        result: Array = self._projector(p["projector"], x, None)
        return result

    def _tile_rows(self, table: Array, gate: Array, arrangement: int, rows: int) -> Array:
        """[tiles, rows, hidden] of an arrangement."""
        s = self._spec
        return table.view(-1, s.tiles, rows, s.hidden)[arrangement] * torch.tanh(gate)


def _attend(count: int, q: Array, k: Array, v: Array) -> Array:
    """The first `count` rows attend to all, and the others to those. As `encoder_layer.Attend`."""
    q, k, v = (each.transpose(0, 1).unsqueeze(0) for each in (q, k, v))
    out = functional.scaled_dot_product_attention(q[:, :, :count], k, v)
    rest = functional.scaled_dot_product_attention(q[:, :, count:], k[:, :, :count], v[:, :, :count])
    return torch.cat([out, rest], 2)[0].transpose(0, 1)


def _declare(ctx: Context, part: Any) -> Any:
    if isinstance(part, Weight):
        return ParamSpec(part, ctx.dtype)
    return {key: _declare(ctx, each) for key, each in part.items()}
