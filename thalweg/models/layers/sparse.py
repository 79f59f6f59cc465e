"""The gated MLP with activation sparsity: down(act(relu(gate(x) - cut)) * up(x))."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.spec import SparseMLP


class SparseGatedMLP:
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: SparseMLP, weights: Mapping[str, Any]) -> None:
        self._deviations = NormalDist().inv_cdf(spec.sparsity)
        self._in = Linear(ctx, weights["gate_up"])
        self._comm = ctx.mesh.tensor
        self._act = ctx.bind(ops.act_and_mul, act=spec.act, size=self._in.outputs[0])
        self._out = RowLinear(ctx, weights["down"])
        self.specs = {"gate_up": self._in.specs, "down": self._out.specs}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        gate, up = self._in(p["gate_up"], x, flow).chunk(2, -1)
        wide = self._comm.all_gather(gate.contiguous()).to(torch.float32)
        mean = wide.mean(-1, keepdim=True)
        cut = mean + (wide - mean).square().mean(-1, keepdim=True).sqrt() * self._deviations
        kept = torch.relu(gate.to(torch.float32) - cut).to(gate.dtype)
        return self._out(p["down"], self._act(torch.cat([kept, up], -1)), flow)
