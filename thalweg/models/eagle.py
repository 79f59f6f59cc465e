"""EAGLE-1 as the tail of the target's step. It pairs the hidden state after the target's last norm with the next token's
embedding, and reads its own output in further passes (`paired_proposer`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thalweg.hal.step import Array, StepBatch
from thalweg.models.eagle3 import EagleProposer
from thalweg.models.proposer import KEY


class Eagle1Proposer(EagleProposer):
    def run(
        self, params: Any, batch: StepBatch, hidden: Tensor, kv: list[Array], rows: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Array]]:
        """As `PairedProposer.run`: the output is the next hidden state too."""
        weights = params[KEY]
        entered = self.draft.project(weights, torch.cat([self.embed(params, batch.tokens), hidden], -1))
        x, kv = self.draft.forward(weights, batch, kv, rows, entered=entered[None])
        return x, x, kv
