"""RMSNorm (Zhang & Sennrich 2019, https://arxiv.org/abs/1910.07467) of the residual stream, fused with the sum before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.spec import ParamSpec, Source


def norm_specs(ctx: Context, name: str, size: int) -> dict[str, ParamSpec]:
    """The parameters of a norm, whoever computes it."""
    return {"weight": ParamSpec((Source(f"{name}.weight", (size,)),), ctx.dtype, dummy="ones")}


class AddRMSNorm:
    """RMSNorm of x + residual; also gives that sum, the residual of what follows."""

    def __init__(self, ctx: Context, name: str, size: int, eps: float) -> None:
        self._first = ctx.bind(ops.rms_norm, eps=eps, size=size)
        self._norm = ctx.bind(ops.add_rms_norm, eps=eps, size=size)
        self.specs = norm_specs(ctx, name, size)

    def __call__(self, p: Mapping[str, Any], x: Array, residual: Array | None) -> tuple[Array, Array]:
        """residual None: the first layer, where x itself is the residual."""
        if residual is None:
            return self._first(x, p["weight"]), x
        normed, residual = self._norm(x, residual, p["weight"])
        return normed, residual
