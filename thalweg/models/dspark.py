"""DSpark as the tail of the target's step: DFlash's block, whose drafts are chosen one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thalweg.hal.step import StepBatch
from thalweg.models.dflash import DFlashProposer
from thalweg.models.draft_vocabulary import widen
from thalweg.models.proposer import KEY


class DSparkProposer(DFlashProposer):
    def _fill(self, params: Any, x: Tensor, batch: StepBatch, token: Tensor, newest: Tensor, level: int) -> Tensor:
        """As of DFlash. The layers run once, and the head adds to the logits of each draft by the one before."""
        chain = self.draft.chain
        if chain is None:
            return super()._fill(params, x, batch, token, newest, level)
        own, drafts, first = params[KEY], list[Tensor](), 0 if self._spec.from_newest else 1
        state = chain.begin(own["chain"], x.shape[0])
        if first:  # the newest token is a token of the block without a draft
            state = chain.add(own["chain"], token, x[:, 0], state)[1]
        for i in range(level):
            more, state = chain.add(own["chain"], token, x[:, first + i], state)
            more = widen(own, more, self._model.vocab, 0.0) if self._spec.mapped else more
            logits = self._head.logits(own if self._spec.has_head else params, x[:, first + i])
            token = self._draw(logits + more, batch, newest + i)
            drafts.append(token)
        return torch.stack(drafts, 1)
