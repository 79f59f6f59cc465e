"""The perceiver resampler of Idefics 2: learned queries read each view, and each other."""

from __future__ import annotations

import torch
from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import Array, StepBatch
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import BoundParts, Parts


class Perceiver:
    """x [T, inputs] of S views -> [S * queries, hidden]."""

    def __init__(self, ctx: Context, s: spec.PerceiverSpec, weights: Parts) -> None:
        self._spec, self._parts = s, BoundParts(ctx, weights, s.norm(""))
        self.specs = self._parts.specs

    def __call__(self, p: Parts, x: Array, patches: Patches, batch: StepBatch) -> Array:
        """The views are the batch's sequences. Keys have no positions."""
        view, views = batch.token_seq, batch.query.shape[0]
        s = self._spec
        x = self._feed_forward("/enter", p["enter"], x, s.act)
        y = p["query"].repeat(views, 1)
        own = torch.arange(views, device=x.device, dtype=view.dtype).repeat_interleave(s.queries)
        sees = own[:, None] == torch.cat([view, own])
        for i in range(s.layers):
            y = self._layer(f"/layers/{i}", p["layers"][i], y, x, sees)
        return self._parts.norm("/leave", p["leave"], y)

    def _layer(self, at: str, p: Parts, y: Array, x: Array, sees: Array) -> Array:
        """y [S * queries, hidden], x [T, hidden], sees: bool[S * queries, T + S * queries]."""
        s, parts = self._spec, self._parts
        queries, source = parts.norm(f"{at}/queries", p["queries"], y), parts.norm(f"{at}/source", p["source"], x)
        q = parts.linear(f"{at}/q", p["q"], queries).view(len(y), s.heads, -1).transpose(0, 1)
        pairs = parts.linear(f"{at}/kv", p["kv"], torch.cat([source, queries])).chunk(2, -1)
        k, v = (
            each.reshape(len(each), s.kv_heads, -1).repeat_interleave(s.heads // s.kv_heads, 1).transpose(0, 1)
            for each in pairs
        )
        read = functional.scaled_dot_product_attention(q, k, v, attn_mask=sees).transpose(0, 1).flatten(1)
        y = y + parts.linear(f"{at}/out", p["out"], read.contiguous())
        return y + self._feed_forward(f"{at}/mlp", p["mlp"], parts.norm(f"{at}/after", p["after"], y), s.layer_act)

    def _feed_forward(self, at: str, p: Parts, x: Array, act: str) -> Array:
        gate, up = self._parts.linear(f"{at}/up", p["up"], x).chunk(2, -1)
        return self._parts.linear(f"{at}/down", p["down"], activate(gate, act) * up)
