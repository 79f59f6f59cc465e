"""Masks of the tokens that are allowed: by allowed_token_ids, and by grammars (`grammar`)."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, Setup, Work
from thalweg.engine.control.parts.grammar import Followers
from thalweg.engine.control.request import Request
from thalweg.engine.control.slots import Slots
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.mask import Mask


class MaskBuilder(Builder):
    part = Mask

    def __init__(self, setup: Setup) -> None:
        self._words = -(-setup.vocab // 32)
        self._followers = Followers(setup.grammars)

    def asked(self, p: TokenSampling) -> bool:
        return bool(p.allowed_ids) or p.grammar is not None

    def waits(self, p: TokenSampling) -> bool:
        return p.grammar is not None

    def hopes(self, p: TokenSampling) -> bool:
        return True

    def refuses(self, state: Slots, request: Request, token: int) -> bool:
        return self._followers.refuses(state, request, token, self._words)

    def enter(self, slot: int, request: Request) -> None:
        if request.sampling.grammar is not None:
            self._followers.enter(slot, request)

    def leave(self, slot: int) -> None:
        self._followers.leave(slot)

    def failed(self) -> list[tuple[Request, str]]:
        return self._followers.failed()

    def build(self, work: Work) -> tuple[Mask | None, int]:
        """A grammar's rows are right for one step. One whose last token is not known hopes, and has every token."""
        mask, lasts, masked = Mask.blank({"S": work.slots.size, "words": self._words}), FOREVER, False
        for row, request in work.rows(self.flag):
            p = request.sampling
            known = work.state.known[request.slot] >= work.context[row] + work.query[row]
            masked |= p.grammar is None or bool(known)
            if p.grammar is not None:
                lasts = 1
                if known:
                    self._followers.fill(work.state, request, mask.allowed[row])
                continue
            mask.allowed[row] = 0
            ids = np.array(p.allowed_ids, np.int64)
            np.bitwise_or.at(mask.allowed[row], ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
        return (mask if masked else None), lasts
