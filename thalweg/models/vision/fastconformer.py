"""FastConformer: a clip's spectrum in, the states of its frames or their transcript out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import Array, Params
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import BoundParts
from thalweg.models.vision.clip_encoder import ClipEncoder
from thalweg.models.vision.conformer_layer import ConformerLayers
from thalweg.models.vision.transcript import build_transcriber

Parts = Mapping[str, Any]


class FastConformer(ClipEncoder):
    """Its attention has relative positions."""

    def __init__(self, ctx: Context, s: spec.FastConformerSpec, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        self._parts = BoundParts(ctx, {key: part for key, part in weights.items() if key != "head"}, s.layer.norm(""))
        self._layers = ConformerLayers(s.layer, self._parts)
        self.specs: dict[str, Any] = self._parts.specs
        self._head = None if s.head is None else build_transcriber(ctx, s.head, weights["head"], s.frames)
        if self._head is not None:
            self.specs = {**self.specs, "head": self._head.specs}

    def run_layer(self, i: int, params: Params, x: Array, places: Array) -> Array:
        return self._layers.run(i, params["layers"][i], x, places)

    def finish(self, params: Params, x: Array, frames: Frames) -> Array | None:
        if (prompt := self.spec.prompt) is not None:
            language = x.new_zeros(len(x), prompt.languages)
            language[:, prompt.language] = 1
            x = self._parts.linear("/prompt/up", params["prompt"]["up"], torch.cat((x, language), 1))
            x = self._parts.linear("/prompt/down", params["prompt"]["down"], functional.relu(x))
        return None if self._head is None else self._head(params["head"], x)[None]

    def enter(self, params: Params, clip: Array) -> Array:
        """As of `ClipEncoder`, with `count_frames` states."""
        s, convs = self.spec, params["convs"]
        x = clip.to(self._dtype).T[None, None]
        for i in range(2 * s.halvings - 1):
            groups, strides = (s.channels, True) if i % 2 else (1, i == 0)
            p = convs[i]
            x = functional.pad(x, s.pads * 2) if strides else x
            x = functional.conv2d(x, p["kernel"], p["bias"], stride=s.stride if strides else 1, groups=groups)
            if i % 2 == 0:  # the pointwise one follows directly
                x = functional.relu(x)
        x = x[0].transpose(0, 1).flatten(1).contiguous()
        return self._parts.linear("/enter", params["enter"], x) * s.scale

    def read_places(self, params: Params, x: Array) -> Array:
        result: Array = self._layers.read_places(x)
        return result
