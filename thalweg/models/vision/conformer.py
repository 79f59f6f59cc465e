"""The conformer of Granite Speech: a clip's stacked spectra in, a vector for each placeholder out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import Array, Params
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import BoundParts, Parts
from thalweg.models.vision.clip_encoder import ClipEncoder
from thalweg.models.vision.qformer import QFormer, fill_block


class BlockConformer(ClipEncoder):
    """Its attention is within blocks, with learned distances."""

    _dtype: torch.dtype

    def enter(self, params: Params, clip: Array) -> Array:
        return self._keep(0, self._parts.linear("/enter", params["enter"], clip.T.contiguous().to(self._dtype)))

    def run_layer(self, i: int, params: Params, x: Array, places: Any) -> Array:
        """As of `ClipEncoder`. Kept states are in front of the current ones, along the last axis."""
        kept, x = x[:, : -self.spec.hidden], x[:, -self.spec.hidden :].contiguous()
        stride = 2 if i in self.spec.halved else 1
        x = self._layer(f"/layers/{i}", params["layers"][i], x, stride)
        x = x + self._feedback(params, x) if i + 1 == self.spec.layers // 2 else x
        x = self._keep(i + 1, x)
        return torch.cat((kept, x), -1) if kept.shape[1] else x

    def _keep(self, place: int, x: Array) -> Array:
        return torch.cat((x, x), -1) if place in self.spec.kept else x

    def _feedback(self, params: Params, x: Array) -> Array:
        """The probabilities of labels, projected."""
        labels = self._parts.linear("/classes", params["classes"], x).softmax(-1)
        return self._parts.linear("/feedback", params["feedback"], labels)

    def _layer(self, at: str, p: Parts, x: Array, stride: int) -> Array:
        x = x + 0.5 * self._feed_forward(f"{at}/ff1", p["ff1"], x)
        x = x + self._attend(f"{at}/attn", p["attn"], x)
        result = self._convolve(f"{at}/conv", p["conv"], x, stride)
        count = len(x) // stride
        x = (x if stride == 1 else x[: count * stride].unflatten(0, (count, stride)).mean(1)) + result[:count]
        x = x + 0.5 * self._feed_forward(f"{at}/ff2", p["ff2"], x)
        return self._parts.norm(f"{at}/norm", p["norm"], x)

    def _feed_forward(self, at: str, p: Parts, x: Array) -> Array:
        x = self._parts.linear(f"{at}/up", p["up"], self._parts.norm(f"{at}/norm", p["norm"], x))
        return self._parts.linear(f"{at}/down", p["down"], functional.silu(x))

    def _attend(self, at: str, p: Parts, x: Array) -> Array:
        """Within blocks of `context` frames, with a learned vector for each distance (Shaw et al. 2018)."""
        s, n = self.spec, x.shape[0]
        x = self._parts.norm(f"{at}/norm", p["norm"], x)
        shape = (-1, s.context, s.heads, s.head_dim)
        q = fill_block(self._parts.linear(f"{at}/q", p["q"], x), s.context).view(shape).transpose(1, 2)
        kv = fill_block(self._parts.linear(f"{at}/kv", p["kv"], x), s.context)
        k, v = (each.reshape(shape).transpose(1, 2) for each in kv.chunk(2, -1))
        place = torch.arange(s.context, device=x.device)
        far = p["far"].index_select(0, (place[:, None] - place + s.reach).flatten()).view(s.context, s.context, s.head_dim)
        scores = (q @ k.transpose(2, 3) + torch.einsum("bhcd,crd->bhcr", q, far)).float() * s.head_dim**-0.5
        rows = torch.arange(scores.shape[0] * s.context, device=x.device).view(-1, 1, 1, s.context)
        share = scores.masked_fill(rows >= n, -torch.inf).softmax(-1)
        y = (share.to(v.dtype) @ v).transpose(1, 2).reshape(-1, s.heads * s.head_dim)[:n]
        return self._parts.linear(f"{at}/out", p["out"], y.contiguous())

    def _convolve(self, at: str, p: Parts, x: Array, stride: int) -> Array:
        s, batch = self.spec, p["batch"]
        x = self._parts.norm(f"{at}/norm", p["norm"], x)
        x = functional.glu(self._parts.linear(f"{at}/up", p["up"], x), -1).T
        left = s.kernel // 2
        x = functional.pad(x, (left, left - (s.kernel + 1) % 2))
        x = functional.conv1d(x[None], p["depth"], groups=s.channels, stride=stride)
        x = functional.batch_norm(x, batch["mean"], batch["var"], batch["weight"], batch["bias"])
        return self._parts.linear(f"{at}/down", p["down"], functional.silu(x)[0].T.contiguous())


class Conformer(BlockConformer):
    """Its states are projected by a Q-Former."""

    def __init__(self, ctx: Context, s: spec.ConformerSpec, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        own = {key: part for key, part in weights.items() if key != "projector"}
        self._parts = BoundParts(ctx, own, s.norm(""))
        self._projector = QFormer(ctx, s.projector, weights["projector"])
        self.specs: dict[str, Any] = {**self._parts.specs, "projector": self._projector.specs}

    def finish(self, params: Params, x: Array, frames: Frames) -> Array:
        result: Array = self._projector(params["projector"], x).to(torch.float32)
        return result
