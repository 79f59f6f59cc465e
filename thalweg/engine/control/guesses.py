"""Whose guess counts: what the parts of a sequence leave no choice about comes first, then what a drafter says.

Where a grammar leaves one token alone, and so for several tokens, one step computes them all (jump-forward). They are drafts
like any other, verified by their masks. So the text is that of a run without, whatever else the request asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.config import JUMP
from thalweg.engine.control.slots import WAITS, Slots

if TYPE_CHECKING:
    from thalweg.engine.control.drafts import Drafter
    from thalweg.engine.control.parts.builder import Builder


class Guesses:
    """A `drafts.Drafter`."""

    def __init__(self, slots: Slots, builders: Sequence[Builder], drafter: Drafter | None, jump: bool) -> None:
        """builders: of the parts of a step. jump: take what they leave no choice about."""
        self.most = max(JUMP if jump else 0, drafter.most if drafter is not None else 0)
        self.needs = WAITS if drafter is None else 0
        """Flags of which a sequence has one if there is anything to guess for it. 0: of any sequence there may be."""
        self._slots, self._drafter, self._jump = slots, drafter, jump
        self._builders = builders
        self._guessed: set[int] = set()
        """Slots whose last drafts are the drafter's."""

    def propose(self, slot: int, most: int) -> list[int]:
        s, request = self._slots, self._slots.requests[slot]
        assert request is not None
        waits = [b for b in self._builders if s.flags[slot] & b.flag] if s.flags[slot] & WAITS else []
        self._guessed.discard(slot)
        for builder in waits if self._jump else ():
            if certain := builder.certain(s, request, min(most, JUMP)):
                return certain
        if self._drafter is None:
            return []
        self._guessed.add(slot)
        guessed = self._drafter.propose(slot, min(most, self._drafter.most))
        for builder in waits if guessed else ():
            guessed = guessed[: builder.follows(s, request, guessed)]
        return guessed

    def hopes(self, slot: int) -> bool:
        s, request = self._slots, self._slots.requests[slot]
        assert request is not None
        if self._jump and s.flags[slot] & WAITS and any(b.forces(s, request) for b in self._builders if s.flags[slot] & b.flag):
            return True
        return self._drafter is not None and self._drafter.hopes(slot)

    def learn(self, slot: int, accepted: int) -> None:
        if self._drafter is not None and slot in self._guessed:
            self._drafter.learn(slot, accepted)
