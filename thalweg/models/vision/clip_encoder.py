"""The frame of encoders that read one clip at a time, with torch's attention: what enters, layers, and what they end in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import Array, Params, State, Step, StepBatch, StepResult
from thalweg.models.vision.bound_parts import BoundParts


class ClipEncoder(ABC):
    """Holds no tensors: parameters are passed. `specs` has them."""

    attention = None
    """Its attention uses no backend."""
    spec: Any
    specs: dict[str, Any]
    _parts: BoundParts

    @property
    def depth(self) -> int:
        """As of `VisionEncoder`."""
        return int(self.spec.layers)

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`. `StepResult.pooled` is the result of `finish`."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            frames = batch.get(Frames)
            assert frames is not None
            x = carried.pop("x") if first else self.enter(params, frames.mel[0])
            places = self.read_places(params, x)
            for i in range(first, last):
                x = self.run_layer(i, params, x, places)
            out = None
            if last < self.depth:
                carried["x"] = x
            else:
                out = self.finish(params, x, frames)
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=out)

        return step

    def encode(self, params: Params, clip: Array) -> Array:
        """clip as of `enter` -> [T, hidden] after all layers."""
        x = self.enter(params, clip)
        places = self.read_places(params, x)
        for i in range(self.depth):
            x = self.run_layer(i, params, x, places)
        return x

    @abstractmethod
    def enter(self, params: Params, clip: Array) -> Array:
        """A spectrum f32[bins, frames], or samples f32[1, n] -> [T, hidden]."""

    def read_places(self, params: Params, x: Array) -> Any:
        """What all layers read of the places of x [T, hidden]. Default: nothing."""
        return None

    @abstractmethod
    def run_layer(self, i: int, params: Params, x: Array, places: Any) -> Array:
        """Layer i: [T, hidden] -> the same."""

    @abstractmethod
    def finish(self, params: Params, x: Array, frames: Frames) -> Array | None:
        """f32[1, n], the transcript of the clip, or f32[N, n], a vector for each placeholder."""
