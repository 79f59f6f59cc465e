"""The drafts of each step: which sequences have any, where they come from, how many fit, and what became of them.

Tokens that a grammar leaves no choice about come first: one step computes them all (jump-forward). Then come the drafts of a
drafter. All are verified by their masks, so the text is that of a run without, whatever else a request asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from thalweg.config import JUMP
from thalweg.engine.control.slots import PER_TOKEN, WAITS, Slots
from thalweg.engine.control.speculation.drafter import AcceptanceCounters, Draft, Drafter
from thalweg.engine.control.speculation.gain import Gain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.engine.control.cache.tables import KVCache
    from thalweg.engine.control.parts.builder import Builder

    I32 = NDArray[np.int32]
    Mask = NDArray[np.bool_]


class Speculator:
    def __init__(
        self, slots: Slots, kv: KVCache, builders: Sequence[Builder], drafter: Drafter | None, jump_forward: bool,
        counters: AcceptanceCounters,
    ) -> None:  # fmt: skip
        """builders: of the parts of a step. jump_forward: draft the tokens that these leave no choice about."""
        self.most = max(JUMP if jump_forward else 0, drafter.most if drafter is not None else 0)
        """Drafts of a sequence in a step."""
        self.gain = Gain()
        self.drafter = drafter
        self._needs = WAITS if drafter is None else 0
        """Flags of which a sequence has one if there can be drafts for it. 0: any sequence can have some."""
        self._slots, self._kv, self._jump = slots, kv, jump_forward
        self._builders, self._counters = builders, counters
        self._from_drafter: Mask = np.zeros(slots.count + 1, np.bool_)
        """Per slot: are its last drafts the drafter's?"""

    # ------------------------------------------------------------------ before a step

    def eligible(self, slots: I32) -> Mask:
        """Which of these may have drafts: verification covers all they ask for, and more than one token is left."""
        s = self._slots
        plain = ((s.flags[slots] & PER_TOKEN) == 0) & (s.logprobs[slots] < 0)
        if self._needs:
            plain &= (s.flags[slots] & self._needs) != 0
        may: Mask = plain & (s.limit[slots] - s.length[slots] > 1)
        return may

    def waits(self, slots: I32, ready: Mask) -> Mask:
        """Which of the `ready` had better wait for their tokens in flight: drafts follow known tokens only."""
        s = self._slots
        out: Mask = ready & (s.known[slots] < s.length[slots]) & self.eligible(slots)
        at = np.flatnonzero(out)
        if at.size:
            out[at] = self._is_promising(slots[at])
        return out

    def _is_promising(self, slots: I32) -> Mask:
        forced = self._forced(slots)
        if self.drafter is not None and not forced.all():
            forced[~forced] = self.drafter.is_promising(slots[~forced])
        return forced

    def _forced(self, slots: I32) -> Mask:
        """Which sequences will have drafts because a part leaves them no choice."""
        s, out = self._slots, np.zeros(slots.size, np.bool_)
        for i in np.flatnonzero(s.flags[slots] & WAITS).tolist() if self._jump else ():
            request = s.requests[int(slots[i])]
            assert request is not None
            out[i] = any(b.forces(s, request) for b in self._parts_of(int(slots[i])))
        return out

    def plan(self, decode: I32, left: int, running: int) -> list[Draft]:
        """Drafts for those of `decode` whose every token is known: at most `left` tokens, in blocks that none of the `running`
        sequences needs."""
        s, planned = self._slots, list[Draft]()
        slots = decode[(s.known[decode] == s.length[decode]) & self.eligible(decode)]
        if left <= 0 or not slots.size:
            return planned
        for slot, tokens in zip(slots.tolist(), self._propose(slots, left), strict=True):
            tokens = tokens[:left]
            start = int(s.scheduled[slot])
            room = int(s.capacity[slot]) - start - 1
            if len(tokens) > room and (self._kv.crowded(running) or not self._kv.grow(slot, start + 1 + len(tokens))):
                tokens = tokens[:room]
            if tokens:
                planned.append(Draft(slot, tokens))
                left -= len(tokens)
        return planned

    def _propose(self, slots: I32, left: int) -> list[list[int]]:
        s = self._slots
        most = np.minimum(min(self.most, left), s.limit[slots] - s.length[slots] - 1).astype(np.int32)
        out = [self._certain(slot, n) for slot, n in zip(slots.tolist(), most.tolist(), strict=True)]
        self._from_drafter[slots] = False
        if self.drafter is None:
            return out
        at = np.array([i for i, tokens in enumerate(out) if not tokens], np.intp)
        if not at.size:
            return out
        self._from_drafter[slots[at]] = True
        proposals = self.drafter.propose(slots[at], np.minimum(most[at], self.drafter.most))
        for i, tokens in zip(at.tolist(), proposals.split(), strict=True):
            out[i] = self._cut(int(slots[i]), tokens)
        return out

    def _certain(self, slot: int, most: int) -> list[int]:
        """Tokens that a part leaves no choice about."""
        s, request = self._slots, self._slots.requests[slot]
        if not self._jump or not s.flags[slot] & WAITS:
            return []
        assert request is not None
        for builder in self._parts_of(slot):
            if certain := builder.certain(s, request, min(most, JUMP)):
                return certain
        return []

    def _cut(self, slot: int, tokens: list[int]) -> list[int]:
        """The drafts that the sequence's parts can be built for."""
        request = self._slots.requests[slot]
        assert request is not None
        for builder in self._parts_of(slot) if tokens and self._slots.flags[slot] & WAITS else ():
            tokens = tokens[: builder.follows(self._slots, request, tokens)]
        return tokens

    def _parts_of(self, slot: int) -> list[Builder]:
        return [b for b in self._builders if self._slots.flags[slot] & b.flag]

    # ------------------------------------------------------------------ after a result

    def verified(self, slots: I32, drafted: I32, accepted: I32) -> None:
        """How many [N] of the drafts of these sequences were accepted."""
        self._counters.count(drafted, accepted)
        mine = self._from_drafter[slots]
        if self.drafter is not None and mine.any():
            self.drafter.learn(slots[mine], accepted[mine])
