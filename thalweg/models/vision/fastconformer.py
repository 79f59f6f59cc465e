"""FastConformer: a clip's spectrum in, the states of its frames or their transcript out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import Array, Params, State, Step, StepBatch, StepResult
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.activation import activate_clip
from thalweg.models.vision.bound_parts import BoundParts
from thalweg.models.vision.transcript import build_transcriber

Parts = Mapping[str, Any]


class FastConformer:
    """Holds no tensors: parameters are passed."""

    attention = None
    """Its attention has relative positions, and uses no backend."""

    def __init__(self, ctx: Context, s: spec.FastConformerSpec, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        self._parts = BoundParts(ctx, {key: part for key, part in weights.items() if key != "head"}, s.norm(""))
        self.specs: dict[str, Any] = self._parts.specs
        self._head = None if s.head is None else build_transcriber(ctx, s.head, weights["head"], s.frames)
        if self._head is not None:
            self.specs = {**self.specs, "head": self._head.specs}

    @property
    def depth(self) -> int:
        """As of `VisionEncoder`."""
        return self.spec.layers

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`: `StepResult.pooled` is f32[1, n], the transcript of a clip."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            frames = batch.get(Frames)
            assert frames is not None
            x = carried.pop("x") if first else self.enter(params, frames.mel[0])
            places = self.relative_places(len(x), x)
            for i in range(first, last):
                x = self._layer(f"/layers/{i}", params["layers"][i], x, places)
            out = None
            if last < self.depth:
                carried["x"] = x
            elif self._head is not None:
                out = self._head(params["head"], x)[None]
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=out)

        return step

    def encode(self, params: Params, mel: Array) -> Array:
        """mel f32[bins, frames] -> [T, hidden]."""
        x = self.enter(params, mel)
        places = self.relative_places(len(x), x)
        for i in range(self.spec.layers):
            x = self._layer(f"/layers/{i}", params["layers"][i], x, places)
        return x

    def enter(self, params: Params, mel: Array) -> Array:
        """mel f32[bins, frames] -> [T, hidden], `count_frames` of them."""
        s, convs = self.spec, params["convs"]
        x = mel.to(self._dtype).T[None, None]
        for i in range(2 * s.halvings - 1):
            groups, strides = (s.channels, True) if i % 2 else (1, i == 0)
            p = convs[i]
            x = functional.conv2d(
                x, p["kernel"], p["bias"], stride=s.stride if strides else 1, padding=s.pad if strides else 0, groups=groups
            )
            if i % 2 == 0:  # the pointwise one follows directly
                x = functional.relu(x)
        x = x[0].transpose(0, 1).flatten(1).contiguous()
        return self._parts.linear("/enter", params["enter"], x) * s.scale

    def relative_places(self, n: int, x: Array) -> Array:
        """Sines and cosines, alternating, of the distances n - 1 to 1 - n: [2 * n - 1, hidden]."""
        hidden = self.spec.hidden
        every = 10000.0 ** -(torch.arange(0, hidden, 2, dtype=torch.float32, device=x.device) / hidden)
        angle = torch.arange(n - 1, -n, -1, dtype=torch.float32, device=x.device)[:, None] * every
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).to(x.dtype)

    def _layer(self, at: str, p: Parts, x: Array, places: Array) -> Array:
        x = x + 0.5 * self._feed_forward(f"{at}/ff1", p["ff1"], x)
        x = x + self._attend(f"{at}/attn", p["attn"], x, places)
        x = x + self._convolve(f"{at}/conv", p["conv"], x)
        x = x + 0.5 * self._feed_forward(f"{at}/ff2", p["ff2"], x)
        return self._parts.norm(f"{at}/norm", p["norm"], x)

    def _feed_forward(self, at: str, p: Parts, x: Array) -> Array:
        x = self._parts.linear(f"{at}/up", p["up"], self._parts.norm(f"{at}/norm", p["norm"], x))
        return self._parts.linear(f"{at}/down", p["down"], activate_clip(x, self.spec.act))

    def _attend(self, at: str, p: Parts, x: Array, places: Array) -> Array:
        """Scores are (q + content) k + (q + place) r, with r of the distance from query to key."""
        n, heads, size = len(x), self.spec.heads, self.spec.hidden // self.spec.heads
        x = self._parts.norm(f"{at}/norm", p["norm"], x)
        q, k, v = self._parts.linear(f"{at}/qkv", p["qkv"], x).view(n, 3, heads, size).unbind(1)
        far = self._parts.linear(f"{at}/far", p["far"], places).view(2 * n - 1, heads, size)
        scores = ((q + p["place"]).transpose(0, 1) @ far.permute(1, 2, 0)).contiguous() * size**-0.5
        # Of [heads, n, 2 * n - 1], row i has the distance to key j in column n - 1 - i + j.
        step = 2 * n - 1
        scores = scores.as_strided((heads, n, n), (n * step, step - 1, 1), n - 1).contiguous()
        y = functional.scaled_dot_product_attention(
            (q + p["content"]).transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], scores[None]
        )
        return self._parts.linear(f"{at}/out", p["out"], y[0].transpose(0, 1).reshape(n, heads * size))

    def _convolve(self, at: str, p: Parts, x: Array) -> Array:
        s, batch, depth = self.spec, p["batch"], p["depth"]
        x = self._parts.norm(f"{at}/norm", p["norm"], x)
        x = functional.glu(self._parts.linear(f"{at}/up", p["up"], x), -1).T
        x = functional.conv1d(x[None], depth["kernel"], depth.get("bias"), padding=(s.kernel - 1) // 2, groups=s.hidden)
        x = functional.batch_norm(x, batch["mean"], batch["var"], batch["weight"], batch["bias"])
        return self._parts.linear(f"{at}/down", p["down"], activate_clip(x, s.act)[0].T.contiguous())
