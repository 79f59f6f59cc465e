"""A part of a layer whose output is added to the residual stream with learned weights per channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.hal.ops.pointwise import sigmoid
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.perlayer import Inner
from thalweg.models.weights import ParamSpec


class ResidualGate:
    """x [T, hidden] -> the same shape. Sums are in float32."""

    def __init__(
        self, ctx: Context, spec: declared.ResidualGate, inner: Inner, weights: Mapping[str, Any], number: int
    ) -> None:
        self._inner, self.mixers, self.places = inner, inner.mixers, inner.places
        self._temperature, self._least = spec.temperature, spec.least
        self.specs = inner.specs | {"around": {"weight": ParamSpec(weights["weight"], "float32")}}

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        out, kept = self._inner(p, x, residual, flow)
        assert kept is not None
        gate = p["around"]["weight"] / self._temperature
        beta = sigmoid(gate)
        alpha = (sigmoid(-gate) * (1 + beta)).clamp(min=self._least).sqrt()
        return (alpha * kept + beta * out).to(out.dtype), None
