"""A draft model as the tail of the target's step.

Every step runs the draft over the step's tokens and the one that it returned, which gives the first draft, and then once more
for each further draft.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thalweg.errors import ConfigError
from thalweg.hal.comm import Mesh
from thalweg.hal.parts.proposing import Proposing
from thalweg.hal.step import StepBatch
from thalweg.models.build import build
from thalweg.models.drafts.declared import describe_indivisible
from thalweg.models.layered_proposer import CACHES, LayeredProposer
from thalweg.models.proposer import KEY, ProposerSetup


class DraftModelProposer(LayeredProposer):
    @classmethod
    def of(cls, setup: ProposerSetup) -> DraftModelProposer:
        return cls(setup)

    def __init__(self, setup: ProposerSetup) -> None:
        assert setup.draft is not None, "planning has read it"
        whole = setup.draft.ranks == 1
        try:
            draft = build(
                setup.draft.hf, binder=setup.binder, attention=setup.attention, mesh=Mesh() if whole else setup.mesh,
                dtype=setup.model.dtype, max_len=setup.max_len, block_tokens=setup.block_tokens,
                quantization=setup.draft.quantization, kv_dtype=setup.draft.kv_dtype,
            )  # fmt: skip
        except ConfigError as e:
            raise e if whole else describe_indivisible(setup.draft, e) from None
        super().__init__(replace(setup, ranks=(0,)) if whole else setup, draft, draft)
        self._embeds_all = draft.vocab >= setup.model.vocab

    def propose(
        self, params: Any, state: Any, batch: StepBatch, taps: tuple[Tensor, ...], tokens: Tensor, counts: Tensor
    ) -> tuple[Tensor, Any]:
        part = batch.get(Proposing)
        assert part is not None
        weights, kv = params[KEY], state[KEY][CACHES]
        ids, owner, position, query, last, row, after = self._arrange(batch, tokens, counts)
        fed = replace(
            batch, tokens=self._clamp(ids), token_seq=owner, positions=position, query=query, last_row=last,
            block_tables=self._table(batch), uniform=batch.uniform + 1 if batch.uniform else 0, parts=(),
        )  # fmt: skip
        x, kv = self.draft.forward(weights, self._plan(fed), kv, row)
        drafts = [self._choose(weights, x, batch, after[0])]
        each = torch.arange(counts.shape[0], device=counts.device, dtype=torch.int32)
        single = replace(fed, token_seq=each, last_row=each, query=torch.ones_like(each), uniform=1)
        for at in after[1 : part.level]:
            fed = replace(single, tokens=self._clamp(drafts[-1]), positions=at, context=at)
            x, kv = self.draft.forward(weights, self._plan(fed), kv)
            drafts.append(self._choose(weights, x, batch, at))
        return torch.stack(drafts, 1), {**state, KEY: {**state[KEY], CACHES: kv}}

    def _clamp(self, tokens: Tensor) -> Tensor:
        """Tokens that the draft can embed: its matrix may have fewer rows of padding than the target's."""
        return tokens if self._embeds_all else tokens.clamp(max=self.draft.vocab - 1)
