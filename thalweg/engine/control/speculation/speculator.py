"""The drafts of each step: the sequences that have any, their source, the number that fits, and their acceptance.

Tokens forced by a grammar come first: one step computes them all (jump-forward). Then come the drafts of a drafter. All are
verified by their masks, so the text is that of a run without drafts, with any other field of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from thalweg.config import JUMP
from thalweg.engine.control.slots import UNDRAFTED, WAITS, Slots
from thalweg.engine.control.speculation.drafter import AcceptanceCounters, Draft, Drafter
from thalweg.engine.control.speculation.gain import Gain, count_runs
from thalweg.engine.control.speculation.starts import Starts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.engine.control.batch import LaunchedStep
    from thalweg.engine.control.cache.tables import KVCache
    from thalweg.engine.control.parts.builder import Builder
    from thalweg.engine.control.scheduler import Chunk

    I32 = NDArray[np.int32]
    Mask = NDArray[np.bool_]


MOST_MISSED = 16
"""Tokens that a proposer may lack of a sequence that it drafts for: those of some steps without drafts, for comparison."""


class Speculator:
    def __init__(
        self, slots: Slots, kv: KVCache, builders: Sequence[Builder], drafter: Drafter | None, jump_forward: bool,
        counters: AcceptanceCounters,
    ) -> None:  # fmt: skip
        """builders: of the parts of a step. jump_forward: draft the tokens that these force."""
        self.most = max(JUMP if jump_forward else 0, drafter.most if drafter is not None else 0)
        """Drafts of a sequence in a step."""
        self.gain = Gain(drafter.most if drafter is not None else 1, None if drafter is None else drafter.bound)
        self.drafter = drafter
        self._remembers = drafter is None or not drafter.proposer or drafter.remembers
        self.starts = Starts()
        """Where drafts of a proposer that may begin at any token do."""
        self._streams = 1
        self.width = 0
        """Drafts of the drafter for a sequence in the step that is scheduled, at most. `choose` sets it."""
        self._needs = WAITS if drafter is None else 0
        """Flags of sequences that can have drafts. 0: any sequence can."""
        self._slots, self._kv, self._jump = slots, kv, jump_forward
        self._builders, self._counters = builders, counters
        self._from_drafter: Mask = np.zeros(slots.count + 1, np.bool_)
        """Per slot: did the drafter propose its last drafts?"""
        self._missed: I32 = np.zeros(slots.count + 1, np.int32)
        """Per slot: tokens that steps without the proposer computed, of the sequence of the serial in `_missed_by`."""
        self._missed_by = np.zeros(slots.count + 1, np.int64)
        self._any_lacks = False
        """Has some sequence ever missed too many tokens?"""
        self._proposed: I32 = np.zeros(slots.count + 1, np.int32)
        """Per slot: its last drafts, without fillers."""

    # ------------------------------------------------------------------ before a step

    def choose(self, streams: int, order: I32, entering: bool) -> int:
        """Set the width of the next step. 0: it has no drafts, and proposes none. streams: sequences past their prompt. order:
        the running ones. entering: some of the step's tokens may be of prompts. Their steps are those of the proposer too, so
        that it lacks nothing when their first drafts are tried."""
        n = self._streams = streams or max(1, order.size)
        self.width = self.gain.choose(n) if self.gain.allows(n) else 0
        if self.width and not entering and self._remembers and self.proposes and self._lacks(order).all():
            self.width = 0
        return self.width

    def miss(self, decode: I32, chunks: Sequence[Chunk]) -> None:
        """The tokens of this step reach no proposer."""
        if self.drafter is None or not self.drafter.proposer or not self._remembers:
            return
        for slots, takes in ((decode, 1), (np.array([c.slot for c in chunks], np.int32), [c.take for c in chunks])):
            serial = self._slots.serial[slots]
            self._missed[slots] = np.where(self._missed_by[slots] == serial, self._missed[slots], 0) + takes
            self._missed_by[slots] = serial
            self._any_lacks = self._any_lacks or bool((self._missed[slots] > MOST_MISSED).any())

    def _lacks(self, slots: I32) -> Mask:
        """For which sequences is no proposal of use? They have no drafts, or the proposer lacks many of their tokens, and few
        would be right."""
        s = self._slots
        lacks: Mask = (s.flags[slots] & UNDRAFTED) != 0
        if self._any_lacks:
            lacks |= (self._missed_by[slots] == s.serial[slots]) & (self._missed[slots] > MOST_MISSED)
        return lacks

    def eligible(self, slots: I32) -> Mask:
        """Which of these may have drafts: verification supports all their features, and more than one token is left."""
        s = self._slots
        plain = (s.flags[slots] & UNDRAFTED) == 0
        if self._needs:
            plain &= (s.flags[slots] & self._needs) != 0
        may: Mask = plain & (s.limit[slots] - s.length[slots] > 1)
        return may & ~self._lacks(slots) if self._any_lacks and self.proposes else may

    def waits(self, slots: I32, ready: Mask) -> Mask:
        """Which of the `ready` had better wait for their tokens in flight: drafts follow known tokens only."""
        s = self._slots
        out: Mask = ready & (s.known[slots] < s.length[slots]) & self.eligible(slots)
        at = np.flatnonzero(out)
        if at.size:
            out[at] = self._is_promising(slots[at])
        return out

    def _is_promising(self, slots: I32) -> Mask:
        forced = self._has_forced_drafts(slots)
        if self.drafter is not None and not forced.all():
            forced[~forced] = self.drafter.is_promising(slots[~forced])
        return forced

    def _has_forced_drafts(self, slots: I32) -> Mask:
        """Which sequences will have forced drafts."""
        s, out = self._slots, np.zeros(slots.size, np.bool_)
        for i in np.flatnonzero(s.flags[slots] & WAITS).tolist() if self._jump else ():
            request = s.requests[int(slots[i])]
            assert request is not None
            out[i] = any(b.forces(s, request) for b in self._parts_of(int(slots[i])))
        return out

    def plan(self, decode: I32, left: int, running: int, fill: bool) -> list[Draft]:
        """Drafts for sequences of `decode` with every token known: at most `left` tokens, in blocks that none of the
        `running` sequences needs. fill: nothing but `decode` is in the step, so that it may be made uniform."""
        s, planned = self._slots, list[Draft]()
        slots = decode[(s.known[decode] == s.length[decode]) & self.eligible(decode)]
        if left <= 0 or not slots.size:
            return planned
        proposals = self._propose(slots, left)
        counts = [len(tokens) for tokens in proposals]
        self._proposed[slots] = counts
        width = self._width(slots, counts, left) if fill and slots.size == decode.size else 0
        if width and self._grow(slots, width, running):
            short = min(counts) < width
            lasts = s.tokens[slots, s.known[slots] - 1].tolist() if short else counts
            return [
                Draft(slot, tokens + [last] * (width - len(tokens)) if short else tokens)
                for slot, last, tokens in zip(slots.tolist(), lasts, proposals, strict=True)
            ]
        for slot, tokens in zip(slots.tolist(), proposals, strict=True):
            tokens = tokens[: max(0, left)]
            room = int(s.capacity[slot] - s.scheduled[slot]) - 1
            if len(tokens) > room and not self._grow(np.array([slot], np.int32), len(tokens), running):
                tokens = tokens[:room]
            self._proposed[slot] = len(tokens)
            if tokens:
                planned.append(Draft(slot, tokens))
                left -= len(tokens)
        return planned

    def make_room(self, decode: I32, chunks: Sequence[Chunk], drafted: Sequence[Draft], running: int) -> None:
        """Blocks for the tokens that a step proposes, where none of the `running` sequences needs them. Proposers may keep
        something of each there."""
        s, most = self._slots, self.width
        if most and self.drafter is not None:
            most = max(most, self.drafter.reach)
        ends = [(slot, 1) for slot in decode[s.scheduled[decode] + 1 + most > s.capacity[decode]].tolist()]
        ends += [(c.slot, c.take) for c in chunks] + [(d.slot, 1 + len(d.tokens)) for d in drafted]
        for slot, take in ends:
            upto = min(int(s.scheduled[slot]) + take + most, int(s.limit[slot]))
            if upto > s.capacity[slot] and not self._kv.is_crowded(running):
                self._kv.grow(slot, upto)

    def _width(self, slots: I32, counts: Sequence[int], left: int) -> int:
        """Drafts of each sequence in a step with equally many for all, so that recorded, captured or compiled steps of this
        width serve it. Short proposals are filled up, with any token: verification decides, so no text depends on it. 0: keep
        the step as it is. counts: of the proposals."""
        s, longest, total = self._slots, max(counts), sum(counts)
        if not longest:
            return 0
        width = min((1 << longest.bit_length()) - 1, max(longest, self.width))
        added = slots.size * width - total
        if added > slots.size + total or slots.size * width > left:
            return 0
        if added:
            filled = slots[np.array(counts) < width]
            # A grammar has masks only for its own drafts, not for fillers.
            if (s.flags[filled] & WAITS).any() or (s.limit[filled] - s.length[filled] <= width).any():
                return 0
        return width

    def _grow(self, slots: I32, drafts: int, running: int) -> bool:
        """Room for so many drafts of each, in blocks that none of the running sequences needs."""
        s = self._slots
        for slot in slots[s.capacity[slots] - s.scheduled[slots] <= drafts].tolist():
            if self._kv.is_crowded(running) or not self._kv.grow(slot, int(s.scheduled[slot]) + 1 + drafts):
                return False
        return True

    def _propose(self, slots: I32, left: int) -> list[list[int]]:
        s = self._slots
        most = np.minimum(min(self.most, left), s.limit[slots] - s.length[slots] - 1).astype(np.int32)
        waits = bool((s.flags[slots] & WAITS).any())
        out: list[list[int]] = [[]] * slots.size
        if waits and self._jump:
            out = [self._certain(slot, n) for slot, n in zip(slots.tolist(), most.tolist(), strict=True)]
        self._from_drafter[slots] = False
        if self.drafter is None:
            return out
        at = [i for i, tokens in enumerate(out) if not tokens]
        if not at:
            return out
        mine, most = (slots, most) if len(at) == slots.size else (slots[at], most[at])
        self._from_drafter[mine] = True
        proposals = self.drafter.propose(mine, np.minimum(most, self.width)).split()
        for i, slot, tokens in zip(at, mine.tolist(), proposals, strict=True):
            out[i] = self._cut(slot, tokens) if waits else tokens
        return out

    def _certain(self, slot: int, most: int) -> list[int]:
        """Tokens that a part forces."""
        s, request = self._slots, self._slots.requests[slot]
        if not s.flags[slot] & WAITS:
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

    @property
    def proposes(self) -> int:
        """Drafts of a sequence that the step proposes on the device. 0: none."""
        return self.width if self.drafter is not None and self.drafter.proposer else 0

    def worth_proposing(self, decode: I32, chunks: Sequence[Chunk], drafted: Sequence[Draft]) -> int:
        """As `proposes`, for a step of these sequences. 0 if the proposer may begin at any token and few of them want drafts:
        those that return a token, are `Starts.first` tokens into their answers, and have more than two tokens left."""
        if self._remembers or not self.proposes:
            return self.proposes
        s = self._slots
        more = [*(d.slot for d in drafted), *(c.slot for c in chunks if s.scheduled[c.slot] + c.take >= s.length[c.slot])]
        slots = np.concatenate([decode, np.array(more, np.int32)]) if more else decode
        end = s.length[slots] + 1
        wants = (end - s.prompt_len[slots] >= self.starts.first) & (s.limit[slots] - end > 1)
        wants &= (s.flags[slots] & UNDRAFTED) == 0
        return self.proposes if 2 * int(wants.sum()) >= max(1, slots.size) else 0

    # ------------------------------------------------------------------ after a result

    def observe(self, step: LaunchedStep, handles: NDArray[np.int64], ended: bool, seconds: float) -> None:
        """Measure a step. handles: of its tokens, in order. ended: did a sequence end with it?"""
        if step.prompt_tokens:
            return
        if not self._remembers and step.proposes and step.drafts is None:
            self.gain.observe_opening(step.streams, seconds, step.proposes)
        elif self._remembers or step.streams > 1 or step.drafts is None or not ended:
            # The end of an answer cuts its last drafts off. `starts` counts that, by the lengths of answers.
            plain = step.drafts is None and step.decodes == step.streams and not step.proposes
            self.gain.observe(step.streams, None if plain else count_runs(handles), seconds, step.width)

    def receive(self, slots: I32, drafts: I32) -> None:
        """The tokens i32[N, K] that a step proposed after the known ones of these sequences."""
        if self.drafter is not None:
            self.drafter.receive(slots, drafts)

    def finish(self, slot: int) -> None:
        """The sequence in this slot has ended, and is about to leave."""
        request = self._slots.requests[slot]
        if not self._remembers and request is not None:
            self._note_length(int(self._slots.known[slot]) - request.prompt_len)
        if self.drafter is not None:
            self.drafter.finish(slot)

    def _note_length(self, tokens: int) -> None:
        if tokens > 0 and self.starts.finish(tokens) and (times := self.gain.times(self._streams)) is not None:
            self.starts.choose(times)

    def count_accepted(self, slots: I32, accepted: I32) -> None:
        """How many [N] of the drafts of these sequences were accepted. Fillers do not count."""
        proposed = self._proposed[slots]
        accepted, some = np.minimum(accepted, proposed), proposed > 0
        for slot, *counts in zip(slots[some].tolist(), proposed[some].tolist(), accepted[some].tolist(), strict=True):
            request = self._slots.requests[slot]
            assert request is not None
            request.rounds += bytes(counts)
        self._counters.count(proposed[some], accepted[some])
        mine = self._from_drafter[slots] & some
        if self.drafter is not None and mine.any():
            self.drafter.learn(slots[mine], accepted[mine])
