"""Attention with scores that also depend on the distance between two tokens, through distance embeddings (DeBERTa)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from thalweg.hal.attention import RelativePositions
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.attention import select_backend
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.layers.norm import build_norm
from thalweg.models.weights import ParamSpec


class Distances:
    """The model's table of distances, normed: [rows, hidden]."""

    def __init__(self, ctx: Context, spec: declared.Distances, weights: Mapping[str, Any]) -> None:
        self._norm = None if spec.norm is None else build_norm(ctx, spec.norm, weights["norm"])
        self.specs: dict[str, Any] = {"table": {"weight": ParamSpec(weights["table"]["weight"], ctx.dtype)}}
        if self._norm is not None:
            self.specs["norm"] = self._norm.specs

    def __call__(self, p: Mapping[str, Any]) -> Array:
        table: Array = p["table"]["weight"]
        return table if self._norm is None else self._norm(p["norm"], table)


class DisentangledAttention:
    """x [T, hidden] -> [T, hidden]. Divided among ranks by heads."""

    cache_scales: tuple[str, ...] = ()

    def __init__(self, ctx: Context, spec: declared.DisentangledAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._head_dim, self._meets = place, spec.head_dim, (spec.keys, spec.queries)
        self._heads, self._distances = ctx.share(spec.heads, "attention heads"), spec.distances
        fixed = replace(ctx, adapters=None)  # rows of distances are no tokens of a sequence
        self._qkv = Linear(fixed if spec.shared else ctx, weights["qkv"])
        self._places = None if spec.shared else Linear(fixed, weights["places"])
        self._out = RowLinear(ctx, weights["out"])
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.backend = select_backend(ctx, self.spec)
        self.layout = self.backend.layout(self.spec, ctx.block_tokens)
        self.specs: dict[str, Any] = {"qkv": self._qkv.specs, "out": self._out.specs}
        if self._places is not None:
            self.specs["places"] = self._places.specs
        _row_ranges(spec.distances)  # before any step

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        tokens, at = x.shape[0], self._place
        assert flow.distances is not None
        low, high = _row_ranges(self._distances)[min(tokens, self._distances.farthest)]
        rows = flow.distances[low:high]
        if self._places is None:
            both = self._heads_of(self._qkv(p["qkv"], torch.cat((x, rows)), None))
            (q, k, v), (queries, keys, _) = both[:, :tokens], both[:, tokens:]
            result = (keys if self._meets[0] else None, queries if self._meets[1] else None)
        else:
            q, k, v = self._heads_of(self._qkv(p["qkv"], x, flow))
            each = iter(self._heads_of(self._places(p["places"], rows, None)))
            result = (next(each) if self._meets[0] else None, next(each) if self._meets[1] else None)
        cache = flow.caches[at.layer]
        out, flow.caches[at.layer] = self.backend.attend_placed(
            q,
            k,
            v,
            cache,
            flow.batch,
            at.group,
            self.spec,
            RelativePositions(_rows_on(self._distances, x.device), low, *result),
        )
        return self._out(p["out"], out.flatten(-2), flow)

    def _heads_of(self, x: Array) -> Array:
        """[T, parts * heads * head_dim] -> [parts, T, heads, head_dim]."""
        return x.unflatten(-1, (-1, self._heads, self._head_dim)).permute(1, 0, 2, 3).contiguous()


@functools.cache
def _rows(spec: declared.Distances) -> Array:
    """i64[2 * farthest + 1]: the table's row for keys that come -farthest ... farthest tokens after their query. Made on the
    host, so that no device's logarithm decides."""
    before = torch.arange(spec.farthest, -spec.farthest - 1, -1)
    if spec.buckets:
        near = spec.half // 2
        far = before.abs().clamp(min=near)
        grows = torch.log(far / near) / torch.log(torch.tensor((spec.farthest - 1) / near)) * (near - 1)
        before = torch.where(before.abs() <= near, before, (torch.ceil(grows).long() + near) * before.sign())
    return (before + spec.half).clamp(0, 2 * spec.half - 1)


@functools.cache
def _row_ranges(spec: declared.Distances) -> tuple[tuple[int, int], ...]:
    """The first of the table's rows, and one past the last, that keys up to so many tokens away need."""
    row = _rows(spec).tolist()
    return tuple((row[spec.farthest + d], row[spec.farthest - d] + 1) for d in range(spec.farthest + 1))


@functools.cache
def _rows_on(spec: declared.Distances, device: torch.device) -> Array:
    return _rows(spec).to(device)
