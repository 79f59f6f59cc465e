"""Granite Speech 5: conformer layers within blocks of frames, and a CTC head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import Array, Params
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import BoundParts, Parts
from thalweg.models.vision.conformer import BlockConformer
from thalweg.models.vision.transcript import build_transcriber


class BlockTranscriber(BlockConformer):
    def __init__(self, ctx: Context, s: spec.BlockTranscriberSpec, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        own = {key: part for key, part in weights.items() if key != "head"}
        self._parts = BoundParts(ctx, own, s.norm(""))
        self._head = build_transcriber(ctx, s.head, weights["head"], s.frames)
        self.specs: dict[str, Any] = {**self._parts.specs, "head": self._head.specs}

    def finish(self, params: Params, x: Array, frames: Frames) -> Array:
        result: Array = self._head(params["head"], x)[None]
        return result
