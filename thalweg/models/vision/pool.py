"""The pooling of an image's patches by a learned query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array, StepBatch
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.weights import ParamSpec


class AttentionPool:
    """x [T, hidden] of S images -> [S, hidden]."""

    def __init__(self, ctx: Context, s: spec.AttentionPoolSpec, weights: Mapping[str, Any]) -> None:
        self._spec = s
        self._linear = {key: Linear(ctx, weights[key]) for key in ("qkv", "out", "up", "down")}
        self._act = ctx.bind(ops.activation, act=s.act, size=s.inner)
        self._norm = build_norm(ctx, s.norm, weights["norm"])
        self.specs: dict[str, Any] = {
            **{key: each.specs for key, each in self._linear.items()},
            "norm": self._norm.specs, "probe": ParamSpec(weights["probe"], ctx.dtype),
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array, batch: StepBatch) -> Array:
        q = self._apply("qkv", p, p["probe"])[:, : self._spec.hidden]
        _, k, v = self._apply("qkv", p, x).chunk(3, -1)
        attended = attend_segments(q, k, v, batch.token_seq, batch.query.shape[0], self._spec.heads)
        pooled = self._apply("out", p, attended.to(x.dtype))
        result = self._apply("down", p, self._act(self._apply("up", p, self._norm(p["norm"], pooled))))
        return pooled + result

    def _apply(self, key: str, p: Mapping[str, Any], x: Array) -> Array:
        y: Array = self._linear[key](p[key], x, None)
        return y


def attend_segments(q: Array, k: Array, v: Array, of: Array, count: int, heads: int) -> Array:
    """f32[count, hidden]: the result of one query for each segment of rows. q, k, v: [T, hidden], q the query of the row's
    segment, or [1, hidden] for all. of: i32[T], the segment of each row."""
    size = k.shape[1] // heads
    scores = (k.float() * q.float()).unflatten(1, (heads, size)).sum(2) * size**-0.5
    at = of.long().unsqueeze(1).expand_as(scores)
    most = scores.new_full((count, heads), -torch.inf).scatter_reduce(0, at, scores, "amax")
    share = (scores - most.gather(0, at)).exp()
    total = torch.zeros_like(most).scatter_add(0, at, share)
    weighted = (v.float().unflatten(1, (heads, size)) * share.unsqueeze(2)).flatten(1)
    found = weighted.new_zeros(count, k.shape[1]).index_add(0, of, weighted)
    result: Array = (found.unflatten(1, (heads, size)) / total.clamp(min=1e-30).unsqueeze(2)).flatten(1)
    return result
