"""wav2vec 2.0 and its relatives: a clip's samples in, its transcript out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import Array, Params
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.activation import activate_clip
from thalweg.models.vision.bound_parts import BoundParts
from thalweg.models.vision.clip_encoder import ClipEncoder
from thalweg.models.vision.entrances import EPS as NORM_EPS
from thalweg.models.vision.entrances import enter_samples
from thalweg.models.vision.transcript import build_transcriber

Parts = Mapping[Any, Any]


class Wav2VecEncoder(ClipEncoder):
    """Scores may have a bias by distance."""

    def __init__(self, ctx: Context, s: spec.Wav2VecSpec, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        self._parts = BoundParts(ctx, {key: part for key, part in weights.items() if key != "head"}, s.norm(""))
        self._head = None if s.head is None else build_transcriber(ctx, s.head, weights["head"], s.frames)
        self.specs: dict[str, Any] = self._parts.specs
        if self._head is not None:
            self.specs = {**self.specs, "head": self._head.specs}

    def run_layer(self, i: int, params: Params, x: Array, places: Array | None) -> Array:
        return self._layer(f"/layers/{i}", params["layers"][i], x, places)

    def end(self, params: Params, x: Array) -> Array:
        """Of the last layer's output."""
        return self._parts.norm("/norm", params["norm"], x) if self.spec.before else x

    def finish(self, params: Params, x: Array, frames: Frames) -> Array:
        assert self._head is not None
        x = self.end(params, x)
        if self.spec.squeeze > 1:
            x = activate_clip(self._parts.linear("/spread", params["spread"], x), self.spec.samples.act)
            x = self._fill(x.reshape(-1, self.spec.hidden), frames)
        result: Array = self._head(params["head"], x)[None]
        return result

    def enter(self, params: Params, clip: Array) -> Array:
        s = self.spec
        x = enter_samples(s.samples, self._parts, params, clip.to(self._dtype))
        places = self._places(params["places"], x)
        if s.squeeze > 1:
            x = functional.avg_pool1d(x.T[None], s.squeeze)[0].T
            count = min(len(x), len(places))
            x, places = x[:count], places[:count]
        return self.begin(params, x + places)

    def begin(self, params: Params, x: Array) -> Array:
        """What the first layer reads."""
        return x if self.spec.before else self._parts.norm("/norm", params["norm"], x)

    def _fill(self, x: Array, frames: Frames) -> Array:
        """Zeros for states at the end that were left out."""
        count = frames.mel.shape[-1]
        for _, taps, stride in self.spec.samples.convs:
            count = (count - taps) // stride + 1
        return functional.pad(x, (0, 0, 0, max(0, count - len(x))))

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
            x = functional.conv1d(x, kernel, p[i]["bias"], padding=s.taps // 2, groups=s.groups, stride=self.spec.squeeze)
            x = x[..., :-1] if s.taps % 2 == 0 else x
            if s.form == "stack":
                x = functional.layer_norm(x.mT, x.shape[1:2], eps=NORM_EPS).mT
            x = activate_clip(x, self.spec.samples.act)
        return x[0].T

    def _layer(self, at: str, p: Parts, x: Array, far: Array | None) -> Array:
        if self.spec.before:
            x = x + self._attend(at, p, self._parts.norm(f"{at}/norm1", p["norm1"], x), far)
            x = x + self._feed_forward(at, p, self._parts.norm(f"{at}/norm2", p["norm2"], x))
            return x + self._adapt(f"{at}/adapter", p["adapter"], x) if self.spec.adapter else x
        x = self._parts.norm(f"{at}/norm1", p["norm1"], x + self._attend(at, p, x, far))
        return self._parts.norm(f"{at}/norm2", p["norm2"], x + self._feed_forward(at, p, x))

    def _adapt(self, at: str, p: Parts, x: Array) -> Array:
        x = self._parts.linear(f"{at}/up", p["up"], self._parts.norm(f"{at}/norm", p["norm"], x))
        return self._parts.linear(f"{at}/down", p["down"], torch.relu(x))

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
        result = self._parts.linear(f"{at}/gate", p["gate"], x.reshape(-1, size)).view(len(x), self.spec.heads, 2, 4).sum(-1)
        one, other = result.sigmoid().unbind(-1)
        return (one * (other * p["share"].view(-1) - 1.0) + 2.0).T.unsqueeze(-1)

    def read_places(self, params: Params, x: Array) -> Array | None:
        """A bias of scores [heads, T, T]: half of the buckets for keys behind the query. In each half, distances have a
        bucket each up to half of them, and logarithmic ones from there on."""
        s, n = self.spec, len(x)
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
