"""The speech encoder of frames of samples. As `layers.speech`, one clip at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import SourceVectors
from thalweg.models.spec.frame_source import STRIDE, TAPS
from thalweg.models.vision.activation import activate_clip
from thalweg.models.vision.bound_parts import BoundParts

TINY = 1e-6
"""Added to the variance of a frame."""


class FrameSource:
    """features f32[N, 1, 1 + samples] -> the vectors of N sources."""

    def __init__(self, ctx: Context, spec: declared.FrameSource, weights: Mapping[str, Any], block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self._spec, self._dtype = spec, getattr(torch, ctx.dtype)
        self._parts = BoundParts(ctx, weights, spec.normalize(""))
        self.specs: dict[str, Any] = self._parts.specs

    def __call__(self, p: Mapping[str, Any], features: Array) -> SourceVectors:
        counts = [int(n) for n in features[:, 0, 0].tolist()]
        result = [self._one(p, row[0, 1 : 1 + n]) for row, n in zip(features, counts, strict=True)]
        return SourceVectors(torch.cat(result), tuple(len(each) for each in result))

    def _one(self, p: Mapping[str, Any], samples: Array) -> Array:
        """samples f32[n] -> [sources, hidden of the decoder]."""
        x = self._enter(p, samples)
        for i, window in enumerate(self._spec.windows):
            x = self._layer(f"/layers/{i}", p["layers"][i], x, window)
        x = self._parts.norm("/norm", p["norm"], x) + p["places"][: len(x)]
        return self._parts.linear("/out", p["out"], x) if self._spec.projected else x

    def _enter(self, p: Mapping[str, Any], samples: Array) -> Array:
        """[sources, hidden]. A last frame without all its samples is silent."""
        size = self._spec.frame
        whole = len(samples) // size
        x = functional.pad(samples.to(self._dtype), (0, -len(samples) % size)).view(-1, size)
        x = x - x.mean(1, keepdim=True)
        x = torch.asinh(torch.exp(p["scale"]) * (x / (x.pow(2).mean(1, keepdim=True) + TINY).sqrt()))
        x = functional.silu(self._parts.linear("/enter", p["enter"], x))
        x = x * (torch.arange(len(x), device=x.device) < whole)[:, None]
        x = x.T[None]
        for i in range(2):
            x = functional.conv1d(
                functional.pad(x, (TAPS - 1, 0)), p["convs"][i]["kernel"], p["convs"][i]["bias"], stride=STRIDE
            )
            x = functional.silu(x) if i == 0 else x
        return x[0].T.contiguous()

    def _layer(self, at: str, p: Mapping[str, Any], x: Array, window: tuple[int, int]) -> Array:
        s, n = self._spec, len(x)
        y = self._parts.linear(f"{at}/qkv", p["qkv"], self._parts.norm(f"{at}/norm1", p["norm1"], x))
        q, k, v = (each.transpose(0, 1)[None] for each in y.view(n, 3, s.heads, s.head_dim).unbind(1))
        y = functional.scaled_dot_product_attention(q, k, v, _see(n, window, x.device))
        x = x + self._parts.linear(f"{at}/out", p["out"], y[0].transpose(0, 1).reshape(n, -1))
        y = self._parts.linear(f"{at}/up", p["up"], self._parts.norm(f"{at}/norm2", p["norm2"], x))
        return x + self._parts.linear(f"{at}/down", p["down"], activate_clip(y, s.act))


def _see(n: int, window: tuple[int, int], device: torch.device) -> Array:
    """bool[n, n]: which keys a query sees."""
    place = torch.arange(n, device=device)
    behind = place[:, None] - place
    before, after = window
    return ((behind >= 0) & (behind < before)) | ((behind < 0) & (-behind < after))
