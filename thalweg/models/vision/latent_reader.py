"""The projector of Kosmos-2: learned queries read each view."""

from __future__ import annotations

import torch
from torch.nn import functional

from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import Array, StepBatch
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import BoundParts, Parts


class LatentReader:
    """x [T, inputs] of S equally large views -> [S * queries, outputs]."""

    def __init__(self, ctx: Context, s: spec.LatentReaderSpec, weights: Parts) -> None:
        self._spec, self._parts = s, BoundParts(ctx, weights, spec.LayerNorm("", s.inputs, 1e-5))
        self.specs = self._parts.specs

    def __call__(self, p: Parts, x: Array, patches: Patches, batch: StepBatch) -> Array:
        """patches: unused, as views come in order."""
        views, heads, query = batch.query.shape[0], self._spec.heads, p["query"]
        x = self._parts.linear("/enter", p["enter"], functional.normalize(x.float(), dim=-1).to(x.dtype))
        source = torch.cat([x.unflatten(0, (views, -1)), query.repeat(views, 1).unflatten(0, (views, -1))], 1)
        q = self._parts.linear("/q", p["q"], query).view(1, len(query), heads, -1).transpose(1, 2)
        pairs = self._parts.linear("/kv", p["kv"], source.flatten(0, 1)).unflatten(0, (views, -1)).chunk(2, -1)
        k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in pairs)
        read = functional.scaled_dot_product_attention(q.expand(views, -1, -1, -1), k, v)
        return self._parts.linear("/out", p["out"], read.transpose(1, 2).flatten(2).flatten(0, 1).contiguous())
