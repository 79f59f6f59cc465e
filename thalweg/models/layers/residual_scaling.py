"""A part of a layer whose output and residual stream are scaled per channel before they are added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.perlayer import Inner
from thalweg.models.weights import ParamSpec


class ResidualScaling:
    """x [T, hidden] -> the same shape. Sums are in float32."""

    def __init__(
        self, ctx: Context, spec: declared.ResidualScaling, inner: Inner, weights: Mapping[str, Any], number: int
    ) -> None:
        self._inner, self.mixers, self.places = inner, inner.mixers, inner.places
        self.specs = inner.specs | {"around": {name: ParamSpec(w, "float32") for name, w in weights.items()}}

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        out, kept = self._inner(p, x, residual, flow)
        assert kept is not None
        own, out, kept = p["around"], out.to(torch.float32), kept.to(torch.float32)
        out = (out + own["hidden_states_bias"]) * own["hidden_states_scale"]
        return (out + (kept + own["residual_bias"]) * own["residual_scale"]).to(x.dtype), None
