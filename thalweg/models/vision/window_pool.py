"""The projector of Molmo 2: one vector of each window of patches."""

from __future__ import annotations

from thalweg.hal.ops.activation import activate
from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import Array, StepBatch
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import BoundParts, Parts
from thalweg.models.vision.pool import attend_segments


class WindowPool:
    """x [T, inputs] in W windows -> [W, outputs]."""

    def __init__(self, ctx: Context, s: spec.WindowPoolSpec, weights: Parts) -> None:
        self._spec, self._parts = s, BoundParts(ctx, weights, s.norm(""))
        self.specs = self._parts.specs

    def __call__(self, p: Parts, x: Array, patches: Patches, batch: StepBatch) -> Array:
        """`Patches.keep` has the patches window by window, and `Patches.window_seq` the window of each."""
        s, parts, of = self._spec, self._parts, patches.window_seq
        x = x.index_select(0, patches.keep)
        count = patches.window.clamp(min=1).unsqueeze(1)
        total = x.new_zeros((count.shape[0], x.shape[1])).float().index_add(0, of, x.float())
        q = parts.linear("/q", p["q"], (total / count).to(x.dtype))
        k, v = parts.linear("/kv", p["kv"], x).chunk(2, -1)
        read = attend_segments(q.index_select(0, of), k, v, of, count.shape[0], s.heads)
        y = parts.linear("/out", p["out"], read.to(x.dtype))
        gate, up = parts.linear("/up", p["up"], y).chunk(2, -1)
        return parts.linear("/down", p["down"], activate(gate, s.act) * up)
