"""The encoder of Voxtral Realtime: a spectrum in, a vector for each token out. No vector depends on later audio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import Array, Params
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.layers.rotary import cos_sin_table
from thalweg.models.vision.activation import activate_clip
from thalweg.models.vision.bound_parts import BoundParts
from thalweg.models.vision.clip_encoder import ClipEncoder
from thalweg.models.vision.tower import Projector

Parts = Mapping[str, Any]


class CausalAudioEncoder(ClipEncoder):
    """Its attention is causal within a window, without a cache."""

    def __init__(self, ctx: Context, s: spec.CausalAudioSpec, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        own = {key: part for key, part in weights.items() if key != "projector"}
        self._parts = BoundParts(ctx, own, s.norm(""))
        self._projector = Projector(ctx, s.projector, weights["projector"])
        self.specs: dict[str, Any] = {**self._parts.specs, "projector": self._projector.specs}

    def run_layer(self, i: int, params: Params, x: Array, places: tuple[Array, Array]) -> Array:
        return self._layer(f"/layers/{i}", params["layers"][i], x, places)

    def finish(self, params: Params, x: Array, frames: Frames) -> Array:
        x = self._parts.norm("/norm", params["norm"], x)
        result: Array = self._projector(params["projector"], x, frames.keep, frames.spin).to(torch.float32)
        return result

    def enter(self, params: Params, clip: Array) -> Array:
        """As of `ClipEncoder`. Silence precedes each convolution."""
        x = clip.to(self._dtype)[None]
        for i, stride in enumerate((1, 2)):
            p = params["convs"][i]
            x = functional.conv1d(functional.pad(x, (3 - stride, 0)), p["kernel"], p["bias"], stride=stride)
            x = activate_clip(x, "gelu")
        return x[0].T.contiguous()

    def read_places(self, params: Params, x: Array) -> tuple[Array, Array]:
        """Cosines and sines [T, 1, head_dim] of the places."""
        size = self.spec.head_dim
        table = cos_sin_table(dict(self.spec.rope), size, len(x), len(x)).to(x.device)
        cos, sin = table.chunk(2, -1)
        return torch.cat((cos, cos), -1)[:, None].to(x.dtype), torch.cat((sin, sin), -1)[:, None].to(x.dtype)

    def _layer(self, at: str, p: Parts, x: Array, turn: tuple[Array, Array]) -> Array:
        x = x + self._attend(at, p, self._parts.norm(f"{at}/norm1", p["norm1"], x), turn)
        y = self._parts.norm(f"{at}/norm2", p["norm2"], x)
        gate, up = self._parts.linear(f"{at}/gate_up", p["gate_up"], y).chunk(2, -1)
        return x + self._parts.linear(f"{at}/down", p["down"], activate_clip(gate, self.spec.act) * up)

    def _attend(self, at: str, p: Parts, x: Array, turn: tuple[Array, Array]) -> Array:
        """In blocks as long as the window: a block attends to itself and to the one before."""
        s, n = self.spec, len(x)
        q, k, v = (self._parts.linear(f"{at}/{name}", p[name], x).view(n, s.heads, s.head_dim) for name in "qkv")
        q, k = _rotate(q, *turn), _rotate(k, *turn)
        wide = min(s.window, n)
        blocks = -(-n // wide)
        q, k, v = (
            functional.pad(each, (0, 0, 0, 0, 0, blocks * wide - n)).view(blocks, wide, s.heads, -1).transpose(1, 2)
            for each in (q, k, v)
        )
        result = functional.scaled_dot_product_attention(q[:1], k[:1], v[:1], is_causal=True)
        if blocks > 1:
            k, v = (torch.cat((each[:-1], each[1:]), 2) for each in (k, v))
            place = torch.arange(wide, device=x.device)
            behind = place[:, None] + wide - torch.arange(2 * wide, device=x.device)
            seen = (behind >= 0) & (behind < wide)
            result = torch.cat((result, functional.scaled_dot_product_attention(q[1:], k, v, seen)))
        result = result.transpose(1, 2).reshape(blocks * wide, -1)[:n]
        return self._parts.linear(f"{at}/out", p["out"], result)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    one, other = x.chunk(2, -1)
    return x * cos + torch.cat((-other, one), -1) * sin
