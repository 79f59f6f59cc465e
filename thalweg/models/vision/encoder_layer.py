"""A layer of an encoder whose attention no backend has: torch's fused attention, called by the encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.layers.ungated import UngatedMLP
from thalweg.models.weights import ParamSpec

Parts = Mapping[str, Any]
Attend = Callable[[Array, Array, Array], Array]
"""q, k, v [T, heads, head_dim] -> [T, heads, head_dim]."""


class EncoderLayer:
    """x [T, hidden] -> [T, hidden]. With gates, each part's output is multiplied by the tanh of one."""

    def __init__(self, ctx: Context, layer: spec.Layer, weights: Parts) -> None:
        mixer, ffn = layer.mixer, layer.ffn
        assert isinstance(mixer, spec.Attention)
        assert isinstance(ffn, spec.UngatedMLP)
        self._heads = mixer.heads
        self._qkv, self._out = Linear(ctx, weights["mixer"]["qkv"]), Linear(ctx, weights["mixer"]["out"])
        self._mlp = UngatedMLP(ctx, ffn, weights["ffn"])
        norms = {key: getattr(layer.norms, key) for key in ("mixer", "ffn")}
        self._norms = {key: build_norm(ctx, norm, weights["norms"][key]) for key, norm in norms.items()}
        self.specs: dict[str, Any] = {
            "mixer": {"qkv": self._qkv.specs, "out": self._out.specs}, "ffn": self._mlp.specs,
            "norms": {key: each.specs for key, each in self._norms.items()},
        }  # fmt: skip
        if "gates" in weights:
            self.specs["gates"] = {key: ParamSpec(each, ctx.dtype) for key, each in weights["gates"].items()}

    def __call__(self, p: Parts, x: Array, attend: Attend) -> Array:
        y = self._norms["mixer"](p["norms"]["mixer"], x)
        q, k, v = self._qkv(p["mixer"]["qkv"], y, None).view(len(x), 3, self._heads, -1).unbind(1)
        y = self._out(p["mixer"]["out"], attend(q, k, v).flatten(1), None)
        x = x + (y * torch.tanh(p["gates"]["attn"]) if "gates" in p else y)
        y = self._mlp(p["ffn"], self._norms["ffn"](p["norms"]["ffn"], x), None)  # type: ignore[arg-type]
        return x + (y * torch.tanh(p["gates"]["ffn"]) if "gates" in p else y)
