"""SAM's image encoder: patches of square views in, a vector for each placeholder out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import Array, Params, State, Step, StepBatch, StepResult
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import BoundParts
from thalweg.models.vision.clip_reader import ClipReader
from thalweg.models.vision.query_encoder import QueryEncoder
from thalweg.models.vision.tower import Projector

Parts = Mapping[str, Any]
NECK_EPS = 1e-6
MOST_SCORES = 1 << 24
"""Attention scores in memory at once."""


class SamEncoder:
    """Holds no tensors: parameters are passed."""

    attention = None
    """Its attention has learned distances along two axes, and uses no backend."""

    def __init__(self, ctx: Context, s: spec.SamSpec, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        own = {key: part for key, part in weights.items() if key not in ("projector", "reader")}
        self._parts = BoundParts(ctx, own, spec.LayerNorm("", s.hidden, s.eps))
        self._projector = Projector(ctx, s.projector, weights["projector"])
        self._reader = None if s.reader is None else _build_reader(ctx, s.reader, weights["reader"])
        self.specs: dict[str, Any] = {**self._parts.specs, "projector": self._projector.specs}
        if self._reader is not None:
            self.specs["reader"] = self._reader.specs

    @property
    def depth(self) -> int:
        """As of `VisionEncoder`."""
        return self.spec.layers + (0 if self.spec.reader is None else self.spec.reader.layers)

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`. An image's views are carried by size: f32[views, rows, columns, hidden], and behind SAM's
        layers [views, vectors, hidden]."""
        layers = self.spec.layers

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            patches = batch.get(Patches)
            assert patches is not None
            views = carried.pop("views") if first else self._enter(params, patches.value)
            for i in range(first, last):
                if i < layers:
                    views = [self._layer(f"/layers/{i}", params["layers"][i], x, i) for x in views]
                elif self._reader is not None:
                    views = [self._reader.run(params["reader"], x, i - layers) for x in views]
                if i == layers - 1:
                    views = [self._shrink(params, x) for x in views]
                    if self._reader is not None:
                        views = [self._reader.join(params["reader"], x) for x in views]
            out = None
            if last < self.depth:
                carried["views"] = views
            else:
                out = self._project(params, views, patches.mix)
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=out)

        return step

    def _enter(self, params: Params, value: Array) -> list[Array]:
        """value: f32[T, 3 * patch * patch] of one image, its tiles first."""
        s = self.spec
        kernel = params["patch"]["kernel"].flatten(1)
        x = functional.linear(value.to(self._dtype), kernel, params["patch"]["bias"])
        parts = [(x, s.tile)] if s.tile == s.grid else [(x[: -(s.grid**2)], s.tile), (x[-(s.grid**2) :], s.grid)]
        views = [part.view(-1, side, side, s.hidden) for part, side in parts if len(part)]
        return [x + self._places(params["places"], x.shape[1]) for x in views] if s.places else views

    def _places(self, table: Array, side: int) -> Array:
        if side == self.spec.grid:
            return table
        x = functional.interpolate(table.permute(0, 3, 1, 2).float(), (side, side), mode="bicubic", antialias=True)
        return x.permute(0, 2, 3, 1).to(table.dtype)

    def _layer(self, at: str, p: Parts, x: Array, i: int) -> Array:
        shape, s = x.shape, self.spec
        y = _normalize(p["norm1"], x, s.eps)
        if i in s.wide:
            y = self._attend(at, p, y)
        else:
            y = self._windows(at, p, y)
        x = x + y
        y = _normalize(p["norm2"], x, s.eps).flatten(0, 2)
        y = self._parts.linear(f"{at}/down", p["down"], activate(self._parts.linear(f"{at}/up", p["up"], y), s.act))
        return x + y.view(shape)

    def _windows(self, at: str, p: Parts, x: Array) -> Array:
        """Attention within windows. Those at the edges are filled up with zeros, which take part in it."""
        size, (views, side, _, hidden) = self.spec.window, x.shape
        x = functional.pad(x, (0, 0, 0, -side % size, 0, -side % size))
        n = x.shape[1] // size
        x = x.view(views, n, size, n, size, hidden).transpose(2, 3).reshape(-1, size, size, hidden)
        x = self._attend(at, p, x)
        x = x.view(views, n, n, size, size, hidden).transpose(2, 3).reshape(views, n * size, n * size, hidden)
        return x[:, :side, :side]

    def _attend(self, at: str, p: Parts, x: Array) -> Array:
        """x [B, side, side, hidden]: everything in one of B sees everything in it."""
        count, side, _, hidden = x.shape
        heads, area = self.spec.heads, side * side
        qkv = self._parts.linear(f"{at}/qkv", p["qkv"], x.reshape(-1, hidden))
        q, k, v = qkv.view(count, area, 3, heads, -1).permute(2, 0, 3, 1, 4)
        together = max(1, MOST_SCORES // (heads * area * area))
        rows = side if together > 1 else max(1, min(side, MOST_SCORES // (heads * area * side)))
        out = []
        for b in range(0, count, together):
            some = [each[b : b + together] for each in (q, k, v)]
            parts = [self._attend_rows(p, some, a, min(a + rows, side), side) for a in range(0, side, rows)]
            out.append(torch.cat(parts, 2))
        y = torch.cat(out).transpose(1, 2).reshape(-1, hidden)
        return self._parts.linear(f"{at}/out", p["out"], y).view(x.shape)

    def _attend_rows(self, p: Parts, qkv: Sequence[Array], first: int, last: int, side: int) -> Array:
        """The queries of rows [first, last). Scores of a key have a term for its distance along each axis, of the unscaled
        query."""
        q, k, v = qkv
        q = q[:, :, first * side : last * side]
        bias = None
        if self.spec.distances:
            grid = q.unflatten(2, (-1, side))
            down = torch.einsum("bnhwd,hkd->bnhwk", grid, _distances(p["h"], side)[first:last])
            across = torch.einsum("bnhwd,wkd->bnhwk", grid, _distances(p["w"], side))
            bias = (down.unsqueeze(-1) + across.unsqueeze(-2)).flatten(4).flatten(2, 3)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    def _shrink(self, params: Params, x: Array) -> Array:
        """[views, vectors, channels]."""
        neck = params["neck"]
        x = functional.conv2d(x.permute(0, 3, 1, 2), neck["conv1"]["kernel"])
        x = _normalize(neck["norm1"], x.permute(0, 2, 3, 1), NECK_EPS).permute(0, 3, 1, 2)
        x = functional.conv2d(x, neck["conv2"]["kernel"], padding=1)
        x = _normalize(neck["norm2"], x.permute(0, 2, 3, 1), NECK_EPS).permute(0, 3, 1, 2)
        x = self._stretch(x)
        for i in range(len(self.spec.convs)):
            x = functional.conv2d(x, params["convs"][i]["kernel"], stride=2, padding=1)
        return x.flatten(2).transpose(1, 2)

    def _stretch(self, x: Array) -> Array:
        """The grid [views, channels, rows, columns] before the convolutions that halve it."""
        return x

    def _project(self, params: Params, views: list[Array], mix: Array) -> Array:
        """mix: i32[N, 1], as in `Patches`; i32[0, 0] = in order."""
        if self._reader is not None:
            views = [self._reader.leave(params["reader"], x) for x in views]
        x = torch.cat([x.flatten(0, 1) for x in views]).contiguous()
        x = self._projector(params["projector"], x, torch.arange(len(x), device=x.device))
        x = torch.cat([x, *(params["learned"][i].unsqueeze(0) for i in range(len(self.spec.learned)))])
        return (x.index_select(0, mix[:, 0]) if mix.shape[1] else x).to(torch.float32)


def _build_reader(ctx: Context, s: Any, weights: Parts) -> QueryEncoder | ClipReader:
    return ClipReader(ctx, s, weights) if isinstance(s, spec.ClipReaderSpec) else QueryEncoder(ctx, s, weights)


def _normalize(p: Parts, x: Array, eps: float) -> Array:
    return functional.layer_norm(x, x.shape[-1:], p["scale"], p["shift"], eps)


def _distances(table: Array, side: int) -> Array:
    """[queries, keys, head_dim] along an axis of `side` places. A table of other distances is stretched."""
    rows = 2 * side - 1
    if len(table) != rows:
        table = functional.interpolate(table.T[None].float(), rows, mode="linear")[0].T.to(table.dtype)
    at = torch.arange(side, device=table.device)
    return table[at[:, None] - at + side - 1]
