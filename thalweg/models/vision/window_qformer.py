"""The Q-Formers of Granite 4 Vision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import Array, StepBatch
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import Parts
from thalweg.models.vision.qformer import QFormer

EPS = 1e-6
"""Of the norm before everything."""


class WindowQFormer(QFormer):
    """x [views, side * side, source] -> [views * N, outputs], row by row."""

    def __init__(self, ctx: Context, s: spec.WindowQFormerSpec, weights: Parts) -> None:
        super().__init__(ctx, s, weights)
        self._windows = s

    def __call__(self, p: Parts, x: Array) -> Array:
        s = self._windows
        x = functional.layer_norm(x, x.shape[-1:], p["begin"]["scale"], p["begin"]["shift"], EPS)
        grid = x.unflatten(1, (s.side, s.side))
        windows = _cut(grid, s.window_side) + p["places"]
        queries = _cut(self._shrink(grid), s.query_side) + p["query"]
        count = len(queries)
        y = self._read(p, queries.flatten(0, 1), windows.flatten(0, 1), count)
        across, q = s.side // s.window_side, s.query_side
        y = y.view(len(x), across, across, q, q, -1).transpose(2, 3).reshape(-1, y.shape[-1])
        return self._parts.linear("/out", p["out"], y)

    def _shrink(self, grid: Array) -> Array:
        """[views, rows, columns, hidden] -> the smaller grid."""
        s = self._windows
        if s.offset >= 0:
            down, across = divmod(s.offset, 2)
            return grid[:, down::2, across::2]
        side = s.side // s.window_side * s.query_side
        return functional.adaptive_avg_pool2d(grid.permute(0, 3, 1, 2), side).permute(0, 2, 3, 1)


def _cut(grid: Array, side: int) -> Array:
    """[views, rows, columns, hidden] -> [views * windows, side * side, hidden]."""
    rows = grid.shape[1] // side
    return grid.unflatten(2, (rows, side)).unflatten(1, (rows, side)).transpose(2, 3).flatten(0, 2).flatten(1, 2)


class WindowQFormers:
    """As a resampler: x [T, layers * source] of S equally large views -> [N, width * outputs]."""

    def __init__(self, ctx: Context, s: spec.WindowQFormersSpec, weights: Mapping[Any, Any]) -> None:
        self._spec = s
        self._readers = [WindowQFormer(ctx, each, weights[i]) for i, each in enumerate(s.readers)]
        self.specs = {i: each.specs for i, each in enumerate(self._readers)}

    def __call__(self, p: Mapping[Any, Any], x: Array, patches: Patches, batch: StepBatch) -> Array:
        """patches: unused, as views come in order."""
        parts = x.unflatten(0, (batch.query.shape[0], -1)).chunk(max(self._spec.sources) + 1, -1)
        result = [each(p[i], parts[self._spec.sources[i]]) for i, each in enumerate(self._readers)]
        return torch.cat([*([torch.zeros_like(result[0])] if self._spec.blank else []), *result], -1)
