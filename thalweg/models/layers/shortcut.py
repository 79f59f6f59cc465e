"""An MLP, and an MoE of the same x with a result that skips a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.mlp import GatedMLP
from thalweg.models.layers.moe import Experts
from thalweg.models.spec import ShortcutMoE


class ShortcutExperts:
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: ShortcutMoE, weights: Mapping[str, Any]) -> None:
        self._mlp = GatedMLP(ctx, spec.mlp, weights["mlp"])
        self._moe = None if spec.moe is None else Experts(ctx, spec.moe, weights["moe"])
        self.specs: dict[str, Any] = {"mlp": self._mlp.specs}
        if self._moe is not None:
            self.specs["moe"] = self._moe.specs

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        out = self._mlp(p["mlp"], x, flow)
        if self._moe is not None:
            flow.carried = self._moe(p["moe"], x, flow)
            return out
        assert flow.carried is not None
        return out + flow.carried
