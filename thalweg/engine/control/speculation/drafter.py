"""The interface of a drafter: it proposes the next tokens of sequences. One step of the model verifies them all.

A draft is accepted exactly if it equals the token that would be sampled at its position. The noise of sampling is a hash of
seed, position and token, so the text does not depend on the drafter, nor on whether there is one.

The row of each draft has the history up to it, so penalties count no draft after it. Sequences have no drafts if a part changes
their logits and is not computed for drafts (`hal.fields.Part.drafts`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from thalweg.drafters import DrafterOption, SpeculationConfig
from thalweg.engine.control.speculation.watch import AcceptanceWatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.engine.control.slots import Slots

    I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Proposals:
    """Drafts of several sequences, concatenated."""

    tokens: I32
    """[sum of counts]"""
    counts: I32
    """[N]: drafts of each sequence."""

    @staticmethod
    def of(drafts: Sequence[Sequence[int]]) -> Proposals:
        """drafts: those of each sequence."""
        counts = np.fromiter(map(len, drafts), np.int32, len(drafts))
        return Proposals(np.fromiter((t for each in drafts for t in each), np.int32, int(counts.sum())), counts)

    def split(self) -> list[list[int]]:
        """The drafts of each sequence."""
        ends = np.cumsum(self.counts).tolist()
        tokens: list[int] = self.tokens.tolist()
        return [tokens[end - n : end] for end, n in zip(ends, self.counts.tolist(), strict=True)]


class Drafter(ABC):
    """Reads the slots of sequences and changes none. `Slots.serial` says whether a slot still has the same sequence."""

    options: ClassVar[Mapping[str, DrafterOption]] = {}
    """Keys of `speculative_config` that it reads, in addition to those of all methods. One of these may be among them, to have
    a default."""

    proposer: ClassVar[str] = ""
    """"module:attribute" of a `models.proposer.Proposer`, where steps propose its drafts on the device (`receive`)."""

    divides: ClassVar[bool] = False
    """Can ranks that divide the target run its layers? Every rank proposes, and the drafts of rank 0 are verified."""
    declares: ClassVar[str] = ""
    """"module:function" that declares its layers, if it has some (`models.drafts`). Planning checks and counts them. They
    are in the checkpoint that the option `model` names. Without that option they are in the target's."""

    remembers = True
    """As `SpeculationConfig.remembers`. Only of drafters with a proposer."""
    bounds: tuple[tuple[int, int], ...] = ()
    """As `SpeculationConfig.bounds`."""

    @classmethod
    def recognises(cls, config: Mapping[str, Any]) -> bool:
        """Is this config.json that of a drafter's checkpoint for this method? Default: no."""
        return False

    @classmethod
    def settle(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Resolve options that depend on each other. ValueError if they do not agree. Default: unchanged."""
        return options

    def __init__(self, config: SpeculationConfig, slots: Slots) -> None:
        self.most = config.tokens
        """Drafts of a sequence in a step, at most."""
        self.bounds, self.remembers = config.bounds, config.remembers
        self._slots = slots

    def bound(self, sequences: int) -> int:
        """Drafts of a sequence in a step, at most, with so many running."""
        found = [drafts for first, drafts in self.bounds if first <= sequences]
        return min(self.most, found[-1]) if found else self.most

    @property
    def reach(self) -> int:
        """Positions from the newest token on that the proposer writes, at least. Default: as many as drafts."""
        return 0

    @abstractmethod
    def propose(self, slots: I32, most: I32) -> Proposals:
        """Drafts for the sequences in these slots [N], at most `most` [N] of each. Every one of their tokens is known. Called
        once a step."""

    def is_promising(self, slots: I32) -> NDArray[np.bool_]:
        """bool[N]: for which sequences with last tokens in flight is it worth waiting, to propose then? Default: for all."""
        return np.ones(slots.size, np.bool_)

    def receive(self, slots: I32, drafts: I32) -> None:
        """The output of a step's proposer for these slots [N]: tokens [N, K] that may follow all known ones, -1 after the
        last. Default: nothing is kept."""
        return

    def learn(self, slots: I32, accepted: I32) -> None:
        """How many [N] of the drafts last proposed for these slots were accepted. Default: nothing is learnt."""
        return

    def finish(self, slot: int) -> None:
        """The sequence in this slot has ended, and is about to leave. Default: nothing is kept of it."""
        return


class DeviceDrafter(Drafter):
    """Passes on the drafts proposed by the step before. Subclasses name their `proposer`."""

    def __init__(self, config: SpeculationConfig, slots: Slots) -> None:
        super().__init__(config, slots)
        n = slots.count + 1
        self._drafts: I32 = np.full((n, self.most), -1, np.int32)
        self._serial, self._known = np.zeros(n, np.int64), np.zeros(n, np.int32)
        """Per slot: the serial and the number of known tokens that its drafts follow."""
        self._watch = AcceptanceWatch(config.method)

    def receive(self, slots: I32, drafts: I32) -> None:
        drafts = drafts[:, : self.most]
        self._drafts[slots, : drafts.shape[1]] = drafts
        self._drafts[slots, drafts.shape[1] :] = -1
        self._serial[slots], self._known[slots] = self._slots.serial[slots], self._slots.known[slots]

    def propose(self, slots: I32, most: I32) -> Proposals:
        s, drafts = self._slots, self._drafts[slots]
        if slots.size == 1:  # without operations on arrays
            slot = int(slots[0])
            kept = self._serial[slot] == s.serial[slot] and self._known[slot] == s.known[slot]
            tokens = drafts[0].tolist()[: int(most[0])] if kept else []
            tokens = tokens[: tokens.index(-1)] if -1 in tokens else tokens
            return Proposals(np.array(tokens, np.int32), np.array([len(tokens)], np.int32))
        there = (self._serial[slots] == s.serial[slots]) & (self._known[slots] == s.known[slots])
        counts = np.minimum(np.logical_and.accumulate(drafts >= 0, 1).sum(1), most) * there
        return Proposals(drafts[np.arange(self.most) < counts[:, None]], counts.astype(np.int32))

    def learn(self, slots: I32, accepted: I32) -> None:
        """Drafters with layers are watched in their first rounds."""
        if self.declares and not self._watch.done:
            self._watch.count(slots.size, int((accepted > 0).sum()))


@dataclass(frozen=True, slots=True)
class Draft:
    """A sequence's last known token and the drafts of those after it, to be computed in one step."""

    slot: int
    tokens: list[int]


@dataclass(slots=True)
class AcceptanceCounters:
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)
    """Accepted drafts by their position in the proposal."""

    def count(self, drafted: I32, accepted: I32) -> None:
        """Drafts of each sequence [N], and how many were accepted [N]."""
        result, right = drafted.tolist(), accepted.tolist()
        self.rounds += len(result)
        self.drafted += sum(result)
        self.accepted += sum(right)
        self.per_position += [0] * (max(result, default=0) - len(self.per_position))
        for n in right:
            for place in range(n):
                self.per_position[place] += 1
