"""P-EAGLE as the tail of the target's step: EAGLE-3, with all drafts after the first from one pass over masks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thalweg.hal.step import Array, StepBatch
from thalweg.models.eagle3 import Eagle3Proposer
from thalweg.models.layered_proposer import repeat_sampling
from thalweg.models.proposer import KEY


class PEagleProposer(Eagle3Proposer):
    def draft_more(
        self, params: Any, batch: StepBatch, single: StepBatch, first: Tensor, onward: Tensor, kv: list[Array], after: Tensor
    ) -> tuple[Tensor, list[Array]]:
        """As `PairedProposer.draft_more`. Each mask attends to the pairs and to the masks before it."""
        count, n = after.shape[0] - 1, first.shape[0]
        if not count:
            return first[:, None], kv
        each = single.token_seq
        fed = replace(
            single, tokens=first.new_full((n * count,), self._spec.mask or 0), token_seq=each.repeat_interleave(count),
            positions=after[:-1].T.flatten(), context=after[0], query=torch.full_like(each, count),
            last_row=(each + 1) * count - 1, uniform=count,
        )  # fmt: skip
        hidden = params[KEY]["mask"].flatten()[None].chunk(len(self.taps), -1)
        joined = self.join_taps(params, hidden).expand(n * count, -1)
        x, _, kv = self.run(params, self._plan(fed), joined, kv, None)
        drafts = self._choose(params, x, repeat_sampling(batch, count), after[1:].T.flatten())
        return torch.cat([first[:, None], drafts.view(n, count)], 1), kv
