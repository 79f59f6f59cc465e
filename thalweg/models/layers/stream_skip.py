"""Layers before which the residual stream is saved, or mixed with a saved one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.perlayer import Inner


class StreamSkip:
    """x [T, hidden] -> the same shape."""

    def __init__(self, ctx: Context, spec: declared.StreamSkip, inner: Inner, weights: Mapping[str, Any], number: int) -> None:
        self._inner, self._spec, self.mixers, self.places = inner, spec, inner.mixers, inner.places
        self.specs = inner.specs

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None, flow: Flow) -> tuple[Array, Array | None]:
        stream = x if residual is None else x + residual
        for place in self._spec.saves:
            flow.saved[place] = stream
        for place in self._spec.reads:
            stream = flow.saved[place] * self._spec.weight + stream * (1 - self._spec.weight)
        return self._inner(p, stream, None, flow)
