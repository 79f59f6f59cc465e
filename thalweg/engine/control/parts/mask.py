"""Masks of allowed tokens: by allowed_token_ids, and by grammars (`grammar`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, Setup, StepRows
from thalweg.engine.control.parts.grammar import GrammarMatchers
from thalweg.engine.control.request import Request
from thalweg.engine.control.slots import Slots
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.mask import Mask


class MaskBuilder(Builder):
    part = Mask

    def __init__(self, setup: Setup) -> None:
        self._words = -(-setup.vocab // 32)
        self._followers = GrammarMatchers(setup.grammars)

    def is_enabled(self, p: TokenSampling) -> bool:
        return bool(p.allowed_ids) or p.grammar is not None

    def waits(self, p: TokenSampling) -> bool:
        return p.grammar is not None

    def hopes(self, p: TokenSampling) -> bool:
        return True

    def refuses(self, state: Slots, request: Request, token: int) -> bool:
        return self._followers.refuses(state, request, token, self._words)

    def certain(self, state: Slots, request: Request, most: int) -> list[int]:
        return self._followers.certain(state, request, most, self._words)

    def forces(self, state: Slots, request: Request) -> bool:
        return self._followers.forces(state, request)

    def follows(self, state: Slots, request: Request, drafts: Sequence[int]) -> int:
        if request.sampling.grammar is None:
            return len(drafts)
        return self._followers.follows(state, request, drafts, self._words)

    def enter(self, slot: int, request: Request) -> None:
        if request.sampling.grammar is not None:
            self._followers.enter(slot, request)

    def leave(self, slot: int) -> None:
        self._followers.leave(slot)

    def take_failures(self) -> list[tuple[Request, str]]:
        return self._followers.take_failures()

    def build(self, work: StepRows) -> tuple[Mask | None, int]:
        """A grammar's rows are valid for one step. A sequence with an unknown last token is sampled speculatively, and has
        every token."""
        requested, lasts, masked = work.rows(self.flag), FOREVER, False
        drafts = work.drafts if work.drafts is not None else np.zeros(work.slots.size, np.int32)
        ends = np.cumsum(drafts) if any(drafts[row] for row, _ in requested) else np.zeros_like(drafts)
        mask = Mask.blank({"S": work.slots.size, "N": int(ends[-1]), "words": self._words})
        for row, request in requested:
            p, known = request.sampling, int(work.state.known[request.slot])
            guessed = int(drafts[row])
            ahead = mask.ahead[int(ends[row]) - guessed : int(ends[row])] if guessed else mask.ahead[:0]
            is_known = known >= work.context[row] + work.query[row] - guessed
            masked |= p.grammar is None or is_known
            if p.grammar is not None:
                lasts = 1
                if is_known:
                    self._followers.fill(work.state, request, [*ahead, mask.allowed[row]])
                continue
            mask.allowed[row] = 0
            ids = np.array(p.allowed_ids, np.int64)
            np.bitwise_or.at(mask.allowed[row], ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
            ahead[:] = mask.allowed[row]
        return (mask if masked else None), lasts
