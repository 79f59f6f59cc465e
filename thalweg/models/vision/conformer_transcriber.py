"""Conformer layers behind any entrance, and a head that reads a transcript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import Array, Params
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import BoundParts, Parts
from thalweg.models.vision.clip_encoder import ClipEncoder
from thalweg.models.vision.conformer_layer import ConformerLayers
from thalweg.models.vision.entrances import ENTRANCES
from thalweg.models.vision.pooling_adapter import pool_states
from thalweg.models.vision.transcript import build_transcriber


class ConformerTranscriber(ClipEncoder):
    def __init__(self, ctx: Context, s: spec.ConformerTranscriberSpec, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        own = {key: part for key, part in weights.items() if key != "head"}
        self._parts = BoundParts(ctx, own, s.layer.norm(""))
        self._layers = ConformerLayers(s.layer, self._parts)
        self._head = build_transcriber(ctx, s.head, weights["head"], s.frames)
        self.specs: dict[str, Any] = {**self._parts.specs, "head": self._head.specs}

    def enter(self, params: Params, clip: Array) -> Array:
        s = self.spec.entrance
        result: Array = ENTRANCES[type(s)](s, self._parts, params, clip.to(self._dtype))
        return result

    def read_places(self, params: Params, x: Array) -> Any:
        return self._layers.read_places(x)

    def run_layer(self, i: int, params: Params, x: Array, places: Any) -> Array:
        return self._layers.run(i, params["layers"][i], x, places)

    def finish(self, params: Params, x: Array, frames: Frames) -> Array:
        if self.spec.last:
            p = params["last"]
            x = functional.layer_norm(x, x.shape[1:], p["scale"], p.get("shift"), self.spec.last_eps)
        if self.spec.adapter is not None:
            x = pool_states(self.spec.adapter, self._parts, params["adapter"], x)
        result: Array = self._head(params["head"], x)[None]
        return result
