"""A vision encoder without layers: embedded patches are the vectors of an image (Fuyu)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import Params, State, Step, StepBatch, StepResult
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.layers.linear import Linear


class PatchEmbedding:
    """Holds no tensors: parameters are passed."""

    attention = None
    """It has none."""
    depth = 1
    """As of `VisionEncoder`: the embedding counts as a layer."""

    def __init__(self, ctx: Context, s: spec.VisionSpec, weights: Mapping[str, Any], block: Callable[..., Any]) -> None:
        """block: unused, as there are no layers."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype, self._patch = s, getattr(torch, ctx.dtype), Linear(ctx, weights["patch"])
        self.specs: dict[str, Any] = {"patch": self._patch.specs}

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            patches = batch.get(Patches)
            assert patches is not None
            x = self._patch(params["patch"], patches.value.to(self._dtype), None)
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=x.index_select(0, patches.keep).to(torch.float32))

        return step
