"""An MLP parallel to an MoE, each with norms before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.mlp import GatedMLP
from thalweg.models.layers.moe import Experts
from thalweg.models.layers.norm import RMSNorm
from thalweg.models.spec import ParallelMoE


class ParallelExperts:
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: ParallelMoE, weights: Mapping[str, Any]) -> None:
        self._mlp, self._moe = GatedMLP(ctx, spec.mlp, weights["mlp"]), Experts(ctx, spec.moe, weights["moe"])
        self._mlp_in, self._mlp_out, self._moe_out = norms = tuple(
            RMSNorm(ctx, getattr(spec, k), weights[k]) for k in ("mlp_in", "mlp_out", "moe_out")
        )
        self.specs: dict[str, Any] = {"mlp": self._mlp.specs, "moe": self._moe.specs}
        self.specs |= {k: n.specs for k, n in zip(("mlp_in", "mlp_out", "moe_out"), norms, strict=True)}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        dense = self._mlp(p["mlp"], self._mlp_in(p["mlp_in"], x), flow)
        mixed = self._moe(p["moe"], x, flow)
        return self._mlp_out(p["mlp_out"], dense) + self._moe_out(p["moe_out"], mixed)
