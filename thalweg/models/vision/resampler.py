"""The projector of MiniCPM-V: learned queries read each view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import Array, StepBatch
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import BoundParts

PERIOD = 1e4
"""Of the slowest sine."""


class Resampler:
    """x [T, inputs] of S views -> [S * queries, hidden]."""

    def __init__(self, ctx: Context, s: spec.ResamplerSpec, weights: Mapping[str, Any]) -> None:
        self._spec, self._parts = s, BoundParts(ctx, weights, s.norm(""))
        self.specs = self._parts.specs

    def __call__(self, p: Mapping[str, Any], x: Array, patches: Patches, batch: StepBatch) -> Array:
        """`Patches.turn` has the row and the column of each patch. The views are the batch's sequences."""
        at, view, views = patches.turn, batch.token_seq, batch.query.shape[0]
        s, n = self._spec, self._spec.hidden
        x = x if s.inputs == n else self._parts.linear("/enter", p["enter"], x)
        x = self._parts.norm("/kv", p["kv"], x)
        q = self._parts.norm("/q", p["q"], p["query"])
        keys = x + sines(at, n).to(x.dtype)
        q, k, v = (
            functional.linear(each, weight, shift).view(len(each), s.heads, -1).transpose(0, 1)
            for each, weight, shift in zip((q, keys, x), p["qkv"].chunk(3), p["shift"].chunk(3), strict=True)
        )
        q = q.repeat(1, views, 1)
        sees = torch.arange(views, device=x.device).repeat_interleave(s.queries)[:, None] == view
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=sees).transpose(0, 1).flatten(1)
        y = self._parts.linear("/attended", p["attended"], y.contiguous())
        return self._parts.norm("/post", p["post"], y) @ p["out"]


def sines(at: Array, size: int) -> Array:
    """f32[T, size]: sines and cosines of the column, then of the row."""
    every = PERIOD ** -(torch.arange(size // 4, device=at.device, dtype=torch.float32) / (size // 4))
    angles = at.flip(1).unsqueeze(2) * every
    return torch.cat([angles.sin(), angles.cos()], 2).flatten(1)
