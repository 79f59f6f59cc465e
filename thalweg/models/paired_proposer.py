"""Proposers whose layers read pairs of a hidden state of the target and the token after it.

An entry of their cache pairs the hidden state h(i) of the target with the next token t(i + 1), and lies at position i. A step
runs the layers over the entries that its tokens complete, and then once more for each further draft, with an output of the pass
before as hidden state. The state keeps h of each sequence's last token, which the next step pairs with its first token.

A sequence without that state starts at its first token of the step. After a prefix hit, older entries are those of the sequence
that computed the prefix. The last one was computed with that sequence's next token.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from thalweg.hal import ops
from thalweg.hal.device import Device
from thalweg.hal.parts.proposing import Proposing
from thalweg.hal.parts.sparse import Sparse
from thalweg.hal.step import Array, StepBatch
from thalweg.models.layered_proposer import CACHES, LayeredProposer
from thalweg.models.proposer import KEY

HIDDEN = "hidden"
"""Key of the state [slots, width]: the hidden state of each sequence's last token."""


class PairedProposer(LayeredProposer):
    """Subclasses compute the hidden states of pairs from the taps, and run the layers."""

    arranges = ops.pair_inputs

    width: int
    """Values of a hidden state of a pair."""

    def allocate(self, device: Device, slots: int, max_len: int) -> Mapping[str, Any]:
        return {HIDDEN: device.alloc((slots, self.width), self.draft.dtype)}

    def join_taps(self, params: Any, taps: tuple[Tensor, ...]) -> Tensor:
        """[T, width]: the hidden states of pairs. Default: the only tap."""
        (hidden,) = taps
        return hidden

    @abstractmethod
    def run(
        self, params: Any, batch: StepBatch, hidden: Tensor, kv: list[Array], rows: Tensor | None
    ) -> tuple[Tensor, Tensor, list[Array]]:
        """The layers over pairs of the batch's tokens [N] and hidden [N, width]. rows i32[R]: the rows to return; None: all.

        Returns (what the output matrix reads [R, hidden], hidden states of the next pairs [R, width], the new caches)."""

    def propose(
        self, params: Any, state: Any, batch: StepBatch, taps: tuple[Tensor, ...], tokens: Tensor, counts: Tensor
    ) -> tuple[Tensor, Any]:
        part = batch.get(Proposing)
        assert part is not None
        kept, hidden, slots = state[KEY], self.join_taps(params, taps), batch.slots.long()
        pairs = self._arrange(batch, tokens, counts, part.fresh)
        ids, owner, position, context, query, last, row, after, source, accepted, each, one = pairs
        fed = replace(
            batch, tokens=ids, token_seq=owner, positions=position, context=context, query=query, last_row=last,
            block_tables=self._table(batch), uniform=batch.uniform + 1 if batch.uniform else 0, parts=(),
        )  # fmt: skip
        before = torch.cat([hidden, kept[HIDDEN].index_select(0, slots)]).index_select(0, source)
        x, onward, kv = self.run(params, self._plan(fed, batch.get(Sparse) is not None), before, kept[CACHES], row)
        first = self._choose(params, x, batch, after[0])
        single = replace(fed, token_seq=each, last_row=each, query=one, uniform=1)
        drafts, kv = self.draft_more(params, batch, single, first, onward, kv, after[: part.level])
        kept[HIDDEN].index_copy_(0, slots, hidden.index_select(0, accepted))
        return drafts, {**state, KEY: {**kept, CACHES: kv}}

    def draft_more(
        self, params: Any, batch: StepBatch, single: StepBatch, first: Tensor, onward: Tensor, kv: list[Array], after: Tensor
    ) -> tuple[Tensor, list[Array]]:
        """(all drafts i32[S, K], the new caches), after the first ones i32[S]. Default: a pass over one pair of each sequence
        for each further draft.

        single: a batch of one pair of each sequence, which lacks tokens, positions and context. onward [S, width]: hidden
        states of the pairs. after i32[K, S]: positions of the newest token and the drafts but the last."""
        drafts, sparse = [first], batch.get(Sparse) is not None
        for at, position in pairwise(after):
            fed = replace(single, tokens=drafts[-1], positions=at, context=at)
            x, onward, kv = self.run(params, self._plan(fed, sparse), onward, kv, None)
            drafts.append(self._choose(params, x, batch, position))
        return torch.stack(drafts, 1), kv
