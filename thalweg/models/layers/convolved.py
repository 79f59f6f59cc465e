"""Compressed convolutional attention: see `spec.convolved` for its two mixers, which follow each other in a layer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.ops.conv import NONE
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.attention import select_backend
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.recurrent import advance
from thalweg.models.weights import ParamSpec

SMALLEST = 1e-30
"""Added to mean squares of heads: of zeros alone it changes the norm."""


class ConvolvedHeads:
    """x [T, hidden] -> `flow.heads`."""

    backend = None

    def __init__(self, ctx: Context, spec: declared.ConvolvedHeads, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._dim, self._channels, self._half = place, spec.head_dim, spec.channels, spec.half
        self._heads, self._kv_heads = spec.heads, spec.kv_heads
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.layout = self.spec.parts
        self._in = Linear(ctx, weights["in"])
        self._conv = ctx.bind(ops.causal_conv, act=NONE, channels=spec.channels, taps=2)
        kept = spec.channels + spec.half
        self._delay = ctx.bind(ops.causal_conv, act=NONE, channels=kept, taps=2)
        self._each = ctx.bind(
            ops.head_linear, turned=False, heads=spec.heads + spec.kv_heads, in_features=2 * spec.head_dim,
            out_features=spec.head_dim,
        )  # fmt: skip
        self.specs: dict[str, Any] = {
            "in": self._in.specs,
            "conv": {name: ParamSpec(w, ctx.dtype) for name, w in weights["conv"].items()},
            "heads": {
                "weight": ParamSpec(
                    weights["heads"]["weight"], ctx.dtype, self._each.pack, matrices=spec.heads + spec.kv_heads
                ),
                "bias": ParamSpec(weights["heads"]["bias"], ctx.dtype),
            },
        }

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> None:
        n, d = self._channels, self._dim
        both, now, later = self._in(p["in"], x, flow).split((n, self._half, self._half), dim=-1)
        first: Array = advance(flow, self._place, 0, partial(self._conv, both.contiguous(), p["conv"]["weight"]))
        moved = torch.cat((first, later), -1)
        taps = torch.stack((torch.ones_like(moved[0]), torch.zeros_like(moved[0])), -1).unsqueeze(1)  # of the token before
        before: Array = advance(flow, self._place, 1, partial(self._delay, moved, taps))
        earlier, late = before.split((n, self._half), -1)
        bias = p["conv"]["bias"]  # before the first token it is all that the first convolution gives
        pair: Array = torch.stack((earlier + bias, first + bias), -1)
        pair = pair.unflatten(1, (-1, d)).flatten(-2)
        mixed = self._each(pair.contiguous(), p["heads"]["weight"]) + p["heads"]["bias"].view(-1, d)
        q, k = both.unflatten(-1, (-1, d)).split((self._heads, self._kv_heads), 1)
        shared = (q.unflatten(1, (self._kv_heads, -1)) + k.unsqueeze(2)) * 0.5
        q = mixed[:, : self._heads] + shared.flatten(1, 2)
        k = mixed[:, self._heads :] + _mean(shared)
        v: Array = torch.cat((now, late), -1)
        flow.heads = q, k, v.unflatten(-1, (-1, d))


def _mean(x: Array) -> Array:
    """The mean of the few heads that share one: [T, G, n, D] -> [T, G, D], added in order."""
    parts = x.unbind(2)
    return sum(parts[1:], parts[0]) / len(parts)


class ConvolvedAttention:
    """`flow.heads` -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: declared.ConvolvedAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place = place
        self._norm = ctx.bind(ops.rms_norm, size=spec.head_dim, eps=SMALLEST)
        self._rope = ctx.bind(
            ops.rope, rotary_dim=spec.rope.dim, interleaved=spec.rope.interleaved, heads=spec.heads, kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
        )  # fmt: skip
        self._out = Linear(ctx, weights["out"])
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.backend = select_backend(ctx, self.spec)
        self.layout: Any = self.backend.layout(self.spec, ctx.block_tokens)
        self.specs: dict[str, Any] = {
            "factor": {"weight": ParamSpec(weights["factor"]["weight"], ctx.dtype)}, "out": self._out.specs,
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        assert flow.heads is not None
        at, (q, k, v) = self._place, flow.heads
        q, k = self._norm(q.contiguous()), self._norm(k.contiguous()) * p["factor"]["weight"][:, None]
        q, k = self._rope(q, k, flow.batch.positions if flow.rows is None else flow.rows, flow.tables[at.table])
        out, flow.caches[at.layer] = self.backend.attend(
            q, k, v.contiguous(), flow.caches[at.layer], flow.batch, at.group, self.spec
        )
        return self._out(p["out"], out.flatten(-2), flow)
