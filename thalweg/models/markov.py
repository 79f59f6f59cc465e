"""DSpark's Markov head: what a draft adds to the logits of the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg.models.context import Context
from thalweg.models.layers.linear import Linear
from thalweg.models.spec.dflash import Chain
from thalweg.models.weights import ParamSpec


class MarkovHead:
    """As `spec.dflash.Chain`. Every rank has it whole."""

    def __init__(self, ctx: Context, s: Chain, weights: Mapping[str, Any]) -> None:
        self.spec, self._out = s, Linear(ctx, weights["out"])
        self._mix = Linear(ctx, weights["mix"]) if "mix" in weights else None
        self.specs: dict[str, Any] = {"table": ParamSpec(weights["table"], ctx.dtype), "out": self._out.specs}
        if self._mix is not None:
            self.specs["mix"] = self._mix.specs

    def begin(self, params: Any, n: int) -> Tensor:
        """The state [n, rank] before a block's first token."""
        table: Tensor = params["table"]
        return table.new_zeros((n, self.spec.rank))

    def add(self, params: Any, token: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """(additions [S, tokens of the drafter], the next state), after the tokens i32[S] before. hidden [S, hidden]: outputs
        of the layers."""
        e = params["table"].index_select(0, token.clamp(0, self.spec.known - 1).long())
        if self._mix is not None and self.spec.kind == "gated":
            e = torch.sigmoid(self._mix(params["mix"], torch.cat([hidden, e], -1), None)) * e
        elif self._mix is not None:
            gate, candidate, out = self._mix(params["mix"], torch.cat([state, e, hidden], -1), None).chunk(3, -1)
            gate = torch.sigmoid(gate)
            state, e = gate * state + (1 - gate) * torch.tanh(candidate), torch.tanh(out)
        return self._out(params["out"], e, None), state
