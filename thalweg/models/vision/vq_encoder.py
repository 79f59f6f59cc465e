"""The encoder of a VQ-VAE: an image's patches in, embeddings of the tokens of its codes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import Array, Params, State, Step, StepBatch, StepResult
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.activation import activate_clip
from thalweg.models.weights import ParamSpec, Weight

GROUPS, EPS = 32, 1e-6
"""Of norms."""
Parts = Mapping[Any, Any]


class VqEncoder:
    """Holds no tensors: parameters are passed. An image is encoded separately."""

    attention = None
    """Its attention has one head over all channels, and uses no backend."""

    def __init__(self, ctx: Context, s: spec.VqEncoderSpec, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        order = [token - s.first_token for token in s.tokens]
        self.specs: dict[str, Any] = {key: _declare(ctx, part) for key, part in weights.items()}
        self.specs["order"] = ParamSpec(Weight(()), "int32", make=partial(torch.tensor, order, dtype=torch.int32))
        levels = range(len(s.widths))
        blocks = [partial(self._block, level=level, i=i) for level in levels for i in range(s.blocks)]
        shrinks = [partial(self._shrink, level=level) for level in levels[:-1]]
        self._layers: list[Callable[[Params, Array], Array]] = []
        for level in levels:
            self._layers += blocks[level * s.blocks : (level + 1) * s.blocks]
            self._layers += shrinks[level : level + 1]
        self._layers.append(self._middle)

    @property
    def depth(self) -> int:
        """As of `VisionEncoder`."""
        return len(self._layers)

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`. The grid [1, channels, rows, columns] is carried."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            patches = batch.get(Patches)
            assert patches is not None
            x = carried.pop("x") if first else self._enter(params, patches.value)
            for layer in self._layers[first:last]:
                x = layer(params, x)
            out = None
            if last < self.depth:
                carried["x"] = x
            else:
                out = self._embed(params, x).to(torch.float32)
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=out)

        return step

    def _enter(self, params: Params, value: Array) -> Array:
        """value: f32[T, 3 * patch * patch] of one square, in rows. Patches behind the last are ignored."""
        rows, patch = self.spec.rows, math.isqrt(value.shape[1] // 3)
        x = value[: rows * rows].to(self._dtype).view(1, rows, rows, 3, patch, patch)
        x = x.permute(0, 3, 1, 4, 2, 5).reshape(1, 3, rows * patch, rows * patch)
        return _convolve(params["enter"], x, padding=1)

    def _block(self, params: Params, x: Array, level: int, i: int) -> Array:
        p = params["levels"][level]
        x = _add_block(p["blocks"][i], x)
        return _add_attention(p["attns"][i], x) if level in self.spec.attends else x

    def _shrink(self, params: Params, x: Array, level: int) -> Array:
        """Zeros are at the right and the bottom."""
        return _convolve(params["levels"][level]["shrink"], functional.pad(x, (0, 1, 0, 1)), stride=2)

    def _middle(self, params: Params, x: Array) -> Array:
        p = params["middle"]
        x = _add_block(p["block_1"], x)
        x = _add_attention(p["attn_1"], x) if self.spec.middle else x
        return _add_block(p["block_2"], x)

    def _embed(self, params: Params, x: Array) -> Array:
        """The grid -> [T, hidden]. Distances are computed in float32."""
        x = _convolve(params["leave"], activate_clip(_normalize(params["norm"], x), "silu"), padding=1)
        x = _convolve(params["quant"], x).flatten(2)[0].T.to(torch.float32)
        book = params["codebook"].to(torch.float32)
        distances = (x * x).sum(1, keepdim=True) + (book * book).sum(1) - 2 * functional.linear(x, book)
        rows = params["order"].index_select(0, distances.argmin(1))
        return params["embedding"].index_select(0, rows)


def _add_block(p: Parts, x: Array) -> Array:
    y = _convolve(p["conv1"], activate_clip(_normalize(p["norm1"], x), "silu"), padding=1)
    y = _convolve(p["conv2"], activate_clip(_normalize(p["norm2"], y), "silu"), padding=1)
    return y + (_convolve(p["shortcut"], x) if "shortcut" in p else x)


def _add_attention(p: Parts, x: Array) -> Array:
    """Everything in the image attends to everything in it."""
    y = _normalize(p["norm"], x)
    q, k, v = (_convolve(p[key], y).flatten(2).mT.unsqueeze(1) for key in ("q", "k", "v"))
    y = functional.scaled_dot_product_attention(q, k, v)[:, 0].mT.reshape(x.shape)
    return x + _convolve(p["proj_out"], y)


def _convolve(p: Parts, x: Array, stride: int = 1, padding: int = 0) -> Array:
    return functional.conv2d(x, p["weight"], p["bias"], stride, padding)


def _normalize(p: Parts, x: Array) -> Array:
    return functional.group_norm(x, GROUPS, p["weight"], p["bias"], EPS)


def _declare(ctx: Context, part: Any) -> Any:
    if isinstance(part, Weight):
        return ParamSpec(part, ctx.dtype)
    return {key: _declare(ctx, each) for key, each in part.items()}
