"""The audio encoder of Phi-4-multimodal: a clip's spectrum in, a vector for each placeholder out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import Array, Params
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.activation import activate_clip
from thalweg.models.vision.bound_parts import BoundParts, Parts
from thalweg.models.vision.clip_encoder import ClipEncoder
from thalweg.models.vision.qformer import fill_block


class WindowConformer(ClipEncoder):
    """Its attention is within windows, with a learned bias for each distance."""

    def __init__(self, ctx: Context, s: spec.WindowConformerSpec, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        self._parts = BoundParts(ctx, weights, s.norm(""))
        self.specs = self._parts.specs

    def enter(self, params: Params, clip: Array) -> Array:
        """As of `ClipEncoder`. Of a clip longer than a window, states fill whole windows."""
        s, convs = self.spec, params["convs"]
        x = ((clip.T.to(self._dtype) - params["centre"]) * params["inverse"])[None, None]
        for i in range(2 * s.halvings - 1):
            p, depthwise = convs[i], i % 2 == 1
            strides = depthwise or i == 0
            x = functional.conv2d(
                x, p["kernel"], p["bias"], stride=2 if strides else 1, padding=1 if strides else 0,
                groups=s.first if depthwise else 1,
            )  # fmt: skip
            if not depthwise:
                x = activate_clip(x, s.acts[3])
        x = x[0].transpose(0, 1).flatten(1).contiguous()
        x = self._parts.linear("/enter", params["enter"], x)
        return fill_block(x, s.window) if len(x) > s.window else x

    def read_places(self, params: Params, x: Array) -> Array:
        """[heads, n, n]: the biases within a window."""
        s = self.spec
        place = torch.arange(min(len(x), s.window), device=x.device)
        far = (place - place[:, None]).clamp(-s.reach, s.reach - 1)
        row = far.abs().clamp(max=s.reach - 1) if s.symmetric else far + s.reach
        return params["far"].index_select(0, row.flatten()).view(*row.shape, s.heads).permute(2, 0, 1).contiguous()

    def run_layer(self, i: int, params: Params, x: Array, places: Array) -> Array:
        at, p = f"/layers/{i}", params["layers"][i]
        x = x + 0.5 * self._feed_forward(f"{at}/in", p["in"], x)
        x = x + self._attend(f"{at}/attn", p["attn"], x, places)
        x = x + self._convolve(f"{at}/conv", p["conv"], x, places.shape[1])
        x = x + 0.5 * self._feed_forward(f"{at}/out", p["out"], x)
        return self._parts.norm(f"{at}/norm", p["norm"], x)

    def finish(self, params: Params, x: Array, frames: Frames) -> Array:
        """`Frames.keep` numbers the vectors of both projectors, those of clips first."""
        result = []
        for i, p in params["projectors"].items():
            up = functional.gelu(self._parts.linear(f"/projectors/{i}/up", p["up"], x))
            result.append(self._parts.linear(f"/projectors/{i}/down", p["down"], up))
        return torch.cat(result).index_select(0, frames.keep).to(torch.float32)

    def _feed_forward(self, at: str, p: Parts, x: Array) -> Array:
        up, gate = self._parts.linear(f"{at}/up", p["up"], self._parts.norm(f"{at}/norm", p["norm"], x)).chunk(2, -1)
        return self._parts.linear(f"{at}/down", p["down"], up * activate_clip(gate.contiguous(), self.spec.acts[0]))

    def _attend(self, at: str, p: Parts, x: Array, places: Array) -> Array:
        s, n = self.spec, places.shape[1]
        x = self._parts.norm(f"{at}/norm", p["norm"], x)
        qkv = self._parts.linear(f"{at}/qkv", p["qkv"], x).view(-1, n, 3, s.heads, s.hidden // s.heads)
        q, k, v = (each.transpose(1, 2) for each in qkv.unbind(2))
        y = functional.scaled_dot_product_attention(q, k, v, places[None])
        return self._parts.linear(f"{at}/out", p["out"], y.transpose(1, 2).reshape(x.shape))

    def _convolve(self, at: str, p: Parts, x: Array, n: int) -> Array:
        """n: states of a window."""
        s, depth = self.spec, p["depth"]
        x = self._parts.linear(f"{at}/up", p["up"], self._parts.norm(f"{at}/norm", p["norm"], x))
        value, gate = x.chunk(2, -1)
        x = (value + p["b1"].flatten()) * activate_clip(gate + p["b2"].flatten(), s.acts[1])
        x = functional.pad(x.unflatten(0, (-1, n)).transpose(1, 2), (s.kernel - 1, 0))
        x = functional.conv1d(x, depth["kernel"], depth["bias"], groups=s.channels)
        x = self._parts.linear(f"{at}/point", p["point"], x.transpose(1, 2).flatten(0, 1).contiguous())
        return self._parts.linear(f"{at}/down", p["down"], activate_clip(x, s.acts[2]))
