"""Linear layers and norms of an encoder, bound from its tree of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.weights import ParamSpec, Weight

Parts = Mapping[str, Any]


class BoundParts:
    """Linear layers and norms of a tree of weights, called by their paths. Other parameters are passed as they are."""

    def __init__(self, ctx: Context, weights: Parts, norm: spec.AnyNorm) -> None:
        """norm: settings of all norms."""
        self._ctx, self._norm, self._bound = ctx, norm, dict[str, Any]()
        self.specs: dict[str, Any] = {key: self._bind(f"/{key}", part) for key, part in weights.items()}

    def _bind(self, path: str, part: Any) -> Any:
        if isinstance(part, Weight):
            return ParamSpec(part, self._ctx.dtype)
        matrix = part.get("weight")
        if isinstance(matrix, Weight) and "mean" not in part:
            wide = len(matrix.sources[0].shape) > 1
            self._bound[path] = Linear(self._ctx, part) if wide else build_norm(self._ctx, self._norm, part)
            return self._bound[path].specs
        return {key: self._bind(f"{path}/{key}", each) for key, each in part.items()}

    def linear(self, path: str, p: Parts, x: Array) -> Array:
        result: Array = self._bound[path](p, x, None)
        return result

    def norm(self, path: str, p: Parts, x: Array) -> Array:
        result: Array = self._bound[path](p, x)
        return result
