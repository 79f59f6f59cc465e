"""Layers before which two residual streams are added, as the input of a loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.norm import build_norm
from thalweg.models.layers.perlayer import Inner
from thalweg.models.weights import ParamSpec


class LoopInput:
    """x [T, hidden] -> the same shape."""

    def __init__(self, ctx: Context, spec: declared.LoopInput, inner: Inner, weights: Mapping[str, Any], number: int) -> None:
        self._inner, self._spec, self.mixers, self.places = inner, spec, inner.mixers, inner.places
        self._norm = None if spec.norm is None else build_norm(ctx, spec.norm, weights["norm"])
        own: dict[str, Any] = {} if self._norm is None else {"norm": self._norm.specs}
        if spec.start:
            own["start"] = ParamSpec(weights["start"], ctx.dtype)
        self.specs = inner.specs | {"around": own}

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        own = p.get("around", {})  # of norms without weights nothing is loaded
        if self._norm is not None:
            x = self._norm.add(own.get("norm"), x, residual)[0]
        elif residual is not None:
            x = x + residual
        if self._spec.saves is not None:
            flow.saved[self._spec.saves] = x
        other = own["start"] if self._spec.adds is None else flow.saved[self._spec.adds]
        return self._inner(p, x + other, None, flow)
