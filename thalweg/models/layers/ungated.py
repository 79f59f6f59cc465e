"""The feed-forward part without a gate: down(act(up(x))), as in the first transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.layers.norm import build_norm
from thalweg.models.layers.ranks import GatheredNorm, HeadParts


class UngatedMLP:
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: declared.UngatedMLP, weights: Mapping[str, Any]) -> None:
        self._up = Linear(ctx, weights["up"])
        self._act = ctx.bind(ops.activation, act=spec.act, size=self._up.outputs[0])
        self._down = RowLinear(ctx, weights["down"])
        self.specs = {"up": self._up.specs, "down": self._down.specs}
        self._norm: Any = None
        if spec.norm is not None:
            parts, norm = HeadParts(ctx.mesh.tensor, spec.inner), build_norm(ctx, spec.norm, weights["norm"])
            self._norm, self.specs["norm"] = norm if parts.whole else GatheredNorm(norm, parts), norm.specs

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        x = self._act(self._up(p["up"], x, flow))
        return self._down(p["down"], x if self._norm is None else self._norm(p["norm"], x), flow)
