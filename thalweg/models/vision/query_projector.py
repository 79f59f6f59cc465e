"""The projector of Aria: learned queries read each view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import Array, StepBatch
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import BoundParts


class QueryProjector:
    """x [T, hidden] of S views -> [S * queries, outputs]."""

    def __init__(self, ctx: Context, s: spec.QueryProjectorSpec, weights: Mapping[str, Any]) -> None:
        self._spec, self._parts = s, BoundParts(ctx, weights, s.norm(""))
        self.specs = self._parts.specs

    def __call__(self, p: Mapping[str, Any], x: Array, patches: Patches, batch: StepBatch) -> Array:
        """The views are the batch's sequences. Keys have no positions."""
        view, views = batch.token_seq, batch.query.shape[0]
        s, parts = self._spec, self._parts
        x, query = parts.norm("/source", p["source"], x), parts.norm("/entry", p["entry"], p["query"])
        q, k, v = (
            functional.linear(parts.linear(f"/{name}", p[name], each), weight, shift)
            .view(len(each), s.heads, -1)
            .transpose(0, 1)
            for name, each, weight, shift in zip("qkv", (query, x, x), p["qkv"].chunk(3), p["shift"].chunk(3), strict=True)
        )
        sees = torch.arange(views, device=x.device).repeat_interleave(s.queries)[:, None] == view
        y = functional.scaled_dot_product_attention(q.repeat(1, views, 1), k, v, attn_mask=sees).transpose(0, 1).flatten(1)
        y = parts.linear("/attended", p["attended"], y.contiguous())
        y = parts.norm("/exit", p["exit"], parts.linear("/out", p["out"], y))
        return parts.linear("/down", p["down"], activate(parts.linear("/up", p["up"], y), "gelu_tanh"))
