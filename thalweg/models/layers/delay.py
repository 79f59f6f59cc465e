"""A gated MLP whose inputs are scaled by a function of the model's delay (Voxtral Realtime)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.mlp import GatedMLP
from thalweg.models.spec import DelayMLP
from thalweg.models.weights import ParamSpec, Weight

BASE = 10_000.0


class DelayScaledMLP:
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: DelayMLP, weights: Mapping[str, Any]) -> None:
        self._mlp = GatedMLP(ctx, spec.mlp, weights)
        hidden = weights["scale"]["up"].sources[0].shape[0]
        time = ParamSpec(Weight(()), ctx.dtype, make=partial(_embed_delay, spec.delay, hidden, ctx.dtype))
        scale = {key: ParamSpec(w, ctx.dtype) for key, w in weights["scale"].items()}
        self.specs = {**self._mlp.specs, "scale": {**scale, "time": time}}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        s = p["scale"]
        scale = functional.linear(activate(functional.linear(s["time"], s["down"]), "gelu"), s["up"])
        return self._mlp(p, x * (1 + scale), flow)


def _embed_delay(delay: int, hidden: int, dtype: str) -> torch.Tensor:
    """[1, hidden]: cosines, then sines, of the delay times falling frequencies."""
    half, kind = hidden // 2, getattr(torch, dtype)
    every = torch.exp(-math.log(BASE) * torch.arange(half).float() / half).to(kind)
    angle = torch.full((1,), delay, dtype=kind) * every
    return torch.cat((angle.cos(), angle.sin()))[None]
