"""The device's side: a table per slot of which token followed which, learnt and read in every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thalweg.drafters import SpeculationConfig
from thalweg.hal.device import Device
from thalweg.hal.op import Binder
from thalweg.hal.parts.proposing import Proposing
from thalweg.hal.step import StepBatch
from thalweg.models.proposer import KEY, Proposer, accepted_row, last_token
from thalweg_drafter import BUCKETS


class SuccessorProposer(Proposer):
    """Keeps {"next": i32[slots, buckets]}: 1 + the token that followed one of this bucket; 0 = none has."""

    def __init__(self, model: Any, binder: Binder, config: SpeculationConfig) -> None:
        super().__init__(model, binder, config)
        self._buckets = config.options[BUCKETS]

    def allocate(self, device: Device, slots: int, max_len: int) -> Mapping[str, Any]:
        return {"next": device.alloc((slots, self._buckets), "int32")}

    def propose(
        self, params: Any, state: Any, batch: StepBatch, taps: tuple[Tensor, ...], tokens: Tensor, counts: Tensor
    ) -> tuple[Tensor, Any]:
        part, slots = batch.get(Proposing), batch.slots.long()
        assert part is not None
        rows = state[KEY]["next"][slots]  # [S, buckets]
        rows = torch.where(part.fresh[:, None], torch.zeros_like(rows), rows)
        rows = self._learn_prompt(rows, batch, counts)
        before = batch.tokens.index_select(0, accepted_row(batch, torch.ones_like(counts)))
        for column in range(tokens.shape[1]):
            rows = self._put(rows, before, tokens[:, column], column < counts)
            before = torch.where(column < counts, tokens[:, column], before)
        drafts, last = [], last_token(tokens, counts)
        for _ in range(self.most):
            found = rows.gather(1, self._bucket(last)[:, None])[:, 0]
            drafts.append(found - 1)
            last = (found - 1).clamp(min=0)
        state[KEY]["next"].index_copy_(0, slots, rows)
        return torch.stack(drafts, 1).to(torch.int32), state

    def _bucket(self, token: Tensor) -> Tensor:
        return token.long() % self._buckets

    def _put(self, rows: Tensor, token: Tensor, follower: Tensor, real: Tensor) -> Tensor:
        """rows with the follower of a token i32[S], where it is real bool[S]."""
        at = self._bucket(token)[:, None]
        return rows.scatter(1, at, torch.where(real[:, None], 1 + follower[:, None], rows.gather(1, at)))

    def _learn_prompt(self, rows: Tensor, batch: StepBatch, counts: Tensor) -> Tensor:
        """rows with what follows what among the step's own tokens, but for drafts. What was said before goes last."""
        known = accepted_row(batch, torch.ones_like(counts))
        seq, token = batch.token_seq.long(), batch.tokens
        row = torch.arange(token.shape[0], device=token.device)
        inside = row < known.long().index_select(0, seq)
        follower = torch.cat([token[1:], token[-1:]])
        flat = torch.where(inside, seq * self._buckets + self._bucket(token), rows.numel())
        padded = torch.cat([rows.flatten(), rows.new_zeros(1)])
        return padded.scatter(0, flat, 1 + follower)[:-1].view(rows.shape)
