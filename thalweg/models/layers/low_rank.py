"""Products of two narrow matrices, added to a projection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.linear import Linear


class LowRankProduct:
    """x [T, inputs] -> [T, outputs on this rank], the addition to the projection."""

    def __init__(self, ctx: Context, weights: Mapping[str, Any]) -> None:
        self._down = Linear(ctx, weights["down"])
        self._up = [Linear(ctx, each) for each in weights["up"].values()]
        self.specs: dict[str, Any] = {"down": self._down.specs, "up": {i: each.specs for i, each in enumerate(self._up)}}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        narrow = self._down(p["down"], x, flow).chunk(len(self._up), -1)
        parts = [up(p["up"][i], each.contiguous(), flow) for i, (up, each) in enumerate(zip(self._up, narrow, strict=True))]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
