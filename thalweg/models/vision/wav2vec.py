"""wav2vec 2.0 and its relatives: a clip's samples in, its transcript out."""

from __future__ import annotations

import math
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

Parts = Mapping[Any, Any]
EPS = 1e-5
"""Of norms of convolutions."""


class Wav2VecEncoder:
    """Holds no tensors: parameters are passed."""

    attention = None
    """Scores may have a bias by distance, so it uses no backend."""

    def __init__(self, ctx: Context, s: spec.Wav2VecSpec, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        self._parts = BoundParts(ctx, {key: part for key, part in weights.items() if key != "head"}, s.norm(""))
        self._head = build_transcriber(ctx, s.head, weights["head"], s.frames)
        self.specs: dict[str, Any] = {**self._parts.specs, "head": self._head.specs}

    @property
    def depth(self) -> int:
        """As of `VisionEncoder`."""
        return self.spec.layers

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`: `StepResult.pooled` is f32[1, n], the transcript of a clip."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            frames = batch.get(Frames)
            assert frames is not None
            x = carried.pop("x") if first else self._enter(params, frames.mel[0])
            far = self._distance_bias(params, len(x))
            for i in range(first, last):
                x = self._layer(f"/layers/{i}", params["layers"][i], x, far)
            out = None
            if last < self.depth:
                carried["x"] = x
            else:
                x = self._parts.norm("/norm", params["norm"], x) if self.spec.before else x
                out = self._head(params["head"], x)[None]
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=out)

        return step

    def _enter(self, params: Params, samples: Array) -> Array:
        """samples f32[1, n] -> [T, hidden]."""
        s, x = self.spec, samples.to(self._dtype)[None]
        for i, (_, _, stride) in enumerate(s.convs):
            p = params["convs"][i]
            x = functional.conv1d(x, p["kernel"], p.get("bias"), stride=stride)
            if s.each_normed:
                x = functional.layer_norm(x.mT, x.shape[1:2], p["norm"]["scale"], p["norm"]["shift"], EPS).mT
            elif not i:
                x = functional.group_norm(x, x.shape[1], p["norm"]["scale"], p["norm"]["shift"], EPS)
            x = activate_clip(x, s.conv_act)
        x = x[0].T.contiguous()
        if s.enter_normed:
            p = params["entering"]
            x = functional.layer_norm(x, x.shape[1:], p["scale"], p["shift"], s.eps)
        x = self._parts.linear("/enter", params["enter"], x)
        x = x + self._places(params["places"], x)
        return x if s.before else self._parts.norm("/norm", params["norm"], x)

    def _places(self, p: Parts, x: Array) -> Array:
        """[T, hidden]."""
        s, x = self.spec.places, x.T[None]
        if s.form == "batch norm":
            batch = p["batch"]
            x = functional.batch_norm(x, batch["mean"], batch["var"], batch["weight"], batch["bias"])
        for i in range(s.layers):
            kernel = p[i]["kernel"]
            if s.form == "weight norm":
                kernel = kernel * (p[i]["lengths"] / kernel.float().norm(dim=(0, 1), keepdim=True)).to(kernel.dtype)
            x = functional.conv1d(x, kernel, p[i]["bias"], padding=s.taps // 2, groups=s.groups)
            x = x[..., :-1] if s.taps % 2 == 0 else x
            if s.form == "stack":
                x = functional.layer_norm(x.mT, x.shape[1:2], eps=EPS).mT
            x = activate_clip(x, self.spec.conv_act)
        return x[0].T

    def _layer(self, at: str, p: Parts, x: Array, far: Array | None) -> Array:
        if self.spec.before:
            x = x + self._attend(at, p, self._parts.norm(f"{at}/norm1", p["norm1"], x), far)
            return x + self._feed_forward(at, p, self._parts.norm(f"{at}/norm2", p["norm2"], x))
        x = self._parts.norm(f"{at}/norm1", p["norm1"], x + self._attend(at, p, x, far))
        return self._parts.norm(f"{at}/norm2", p["norm2"], x + self._feed_forward(at, p, x))

    def _feed_forward(self, at: str, p: Parts, x: Array) -> Array:
        return self._parts.linear(
            f"{at}/down", p["down"], activate_clip(self._parts.linear(f"{at}/up", p["up"], x), self.spec.act)
        )

    def _attend(self, at: str, p: Parts, x: Array, far: Array | None) -> Array:
        n, heads = len(x), self.spec.heads
        q, k, v = self._parts.linear(f"{at}/qkv", p["qkv"], x).view(n, 3, heads, -1).permute(1, 2, 0, 3)[:, None]
        bias = None if far is None else self._gate(at, p, x)[None] * far
        y = functional.scaled_dot_product_attention(q, k, v, bias)
        return self._parts.linear(f"{at}/out", p["out"], y[0].transpose(0, 1).reshape(n, -1))

    def _gate(self, at: str, p: Parts, x: Array) -> Array:
        """[heads, T, 1], of each query."""
        size = self.spec.hidden // self.spec.heads
        made = self._parts.linear(f"{at}/gate", p["gate"], x.reshape(-1, size)).view(len(x), self.spec.heads, 2, 4).sum(-1)
        one, other = made.sigmoid().unbind(-1)
        return (one * (other * p["share"].view(-1) - 1.0) + 2.0).T.unsqueeze(-1)

    def _distance_bias(self, params: Params, n: int) -> Array | None:
        """[heads, n, n]: half of the buckets for keys behind the query. In each half, distances have a bucket each up to half
        of them, and logarithmic ones from there on."""
        s = self.spec
        if not s.buckets:
            return None
        table = params["layers"][0]["far"]
        place = torch.arange(n, device=table.device)
        apart = place - place[:, None]
        half, near = s.buckets // 2, s.buckets // 4
        size = apart.abs()
        late = torch.log(size.clamp(min=1).float() / near) / math.log(s.distance / near) * (half - near)
        late = (near + late).long().clamp(max=half - 1)
        row = (apart > 0).long() * half + torch.where(size < near, size, late)
        return table[row].permute(2, 0, 1)
