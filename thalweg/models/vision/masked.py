"""A vision encoder of views with filled parts, which no patch attends to (Phi-4-multimodal)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import Array, Params, State, Step, StepBatch, StepResult
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.layers.linear import Linear
from thalweg.models.vision.encoder_layer import EncoderLayer
from thalweg.models.vision.tower import Projector
from thalweg.models.weights import ParamSpec


class MaskedEncoder:
    """Holds no tensors: parameters are passed."""

    attention = None
    """Its attention has a mask, and uses no backend."""

    def __init__(self, ctx: Context, s: spec.VisionSpec, weights: Mapping[str, Any], block: Callable[..., Any]) -> None:
        """block: unused, as its layers attend in another way."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        self._patch, self._projector = Linear(ctx, weights["patch"]), Projector(ctx, s.projector, weights["projector"])
        self._layers = [EncoderLayer(ctx, each, weights["layers"][i]) for i, each in enumerate(s.layers)]
        self.specs: dict[str, Any] = {
            "patch": self._patch.specs, "projector": self._projector.specs,
            "places": {"weight": ParamSpec(weights["places"]["weight"], ctx.dtype)},
            "layers": {i: each.specs for i, each in enumerate(self._layers)},
        }  # fmt: skip

    @property
    def depth(self) -> int:
        """As of `VisionEncoder`."""
        return len(self._layers)

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            patches = batch.get(Patches)
            assert patches is not None
            x = carried.pop("x") if first else self._enter(params, patches)
            seen = patches.share.view(batch.query.shape[0], 1, 1, -1) > 0
            for i in range(first, last):
                x = self._layers[i](params["layers"][i], x, partial(_attend, seen))
            out = None
            if last < self.depth:
                carried["x"] = x
            else:
                x = self._projector(params["projector"], x, patches.keep)
                out = x.index_select(0, patches.mix[:, 0]).to(torch.float32)
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=out)

        return step

    def _enter(self, params: Params, patches: Patches) -> Array:
        x = self._patch(params["patch"], patches.value.to(self._dtype), None)
        return x + params["places"]["weight"].index_select(0, patches.place[:, 0])


def _attend(seen: Array, q: Array, k: Array, v: Array) -> Array:
    """As `encoder_layer.Attend`. seen: bool[views, 1, 1, patches]."""
    views = len(seen)
    q, k, v = (each.unflatten(0, (views, -1)).transpose(1, 2) for each in (q, k, v))
    result: Array = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(0, 1)
    return result
