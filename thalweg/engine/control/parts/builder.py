"""What a builder of a part is, and what it sees of the step it builds for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from thalweg.engine.control.slots import LOOKBACK, PARTS, PER_TOKEN, Slots
from thalweg.features import all_features
from thalweg.hal.fields import Part, dims
from thalweg.plugins import import_attribute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.engine.control.adapters import AdapterSlots
    from thalweg.engine.control.encodings import Encodings
    from thalweg.engine.control.request import Request
    from thalweg.engine.control.scheduler import Chunk
    from thalweg.engine.control.speculation.drafter import Draft
    from thalweg.engine.messages import TokenSampling
    from thalweg.grammar.grammars import Grammars

    I32 = NDArray[np.int32]

FOREVER = 1 << 30


@dataclass(frozen=True, slots=True)
class Setup:
    """What a builder may know when it is made."""

    seqs: int
    """Most sequences of a step: slots are 1..seqs."""
    max_len: int
    vocab: int
    grammars: Grammars | None = None
    """What compiles grammars. None: no request has one."""
    encodings: Encodings | None = None
    """None: no request has inputs to encode."""
    top: int = 0
    """Tokens that a token reads at the most, in layers that choose them. 0 = all."""
    adapters: AdapterSlots | None = None
    """None: no request has an adapter."""


@dataclass(slots=True)
class ScoredRows:
    """Rows [begin, end) of StepResult.score are the prompt tokens of `request` from position `start`."""

    request: Request
    serial: int
    start: int
    begin: int
    end: int


@dataclass(slots=True)
class StepRows:
    """One step. Its rows are sequences, in the order of the batch: those that decode a token, those with a chunk of their
    prompt, those with drafts."""

    state: Slots
    slots: I32
    context: I32
    """Per row: tokens already in the cache."""
    query: I32
    """Per row: new tokens."""
    flags: int
    """What any of the sequences asks for (`Slots.flags`)."""
    chunks: Sequence[Chunk] = ()
    chunks_from: int = 0
    """Row of the first chunk."""
    drafts: I32 | None = None
    """Per row: how many of its last new tokens are guesses. None: no row has any."""
    most_drafts: int = 0
    """At most so many of a sequence, in any step."""
    proposes: int = 0
    """Drafts of a sequence that the step proposes. 0: it has no proposer."""
    drafted: Sequence[Draft] = ()
    """The guesses, one for each row that has any, in the order of the rows."""
    scored: list[ScoredRows] = field(default_factory=list)
    """For the record of the step: whose prompt tokens `Scores` are."""

    def rows(self, flag: int) -> list[tuple[int, Request]]:
        """(row, request) of the sequences with any of these flags."""
        rows = np.nonzero(self.state.flags[self.slots] & flag)[0].tolist()
        return [(row, r) for row in rows if (r := self.state.requests[int(self.slots[row])]) is not None]

    def first_token(self, row: int) -> int:
        """Index in T of a row's first new token."""
        return int(self.query[:row].sum())


class Builder(ABC):
    """Fills one kind of part. Made once per engine; one thread drives it."""

    part: ClassVar[type[Part]]
    looks_back: ClassVar[bool] = False
    """The step looks back at the history of sequences that ask for it: what is not computed must be written there."""
    flag: int = 0
    """Its own bit of `Slots.flags`."""

    @property
    def flags(self) -> int:
        """All bits of a sequence that asks for it."""
        return self.flag | LOOKBACK * self.looks_back | PER_TOKEN * (self.part.logits and not self.part.drafts)

    def __init__(self, setup: Setup) -> None:
        """Subclasses keep what they need."""
        return

    def applies(self, request: Request) -> bool:
        """Does a request ask for it? Default: where its sampling parameters do (`asked`)."""
        return self.is_enabled(request.sampling)

    def is_enabled(self, p: TokenSampling) -> bool:
        """Do sampling parameters ask for it? Default: no, it follows from the step (`wanted`)."""
        return False

    def waits(self, p: TokenSampling) -> bool:
        """Does the part for a token follow from the token before, where a request asks for it? Default: no."""
        return False

    def hopes(self, p: TokenSampling) -> bool:
        """Where it waits: may a token be drawn without the part, which then says whether it forbids it (`refuses`)? Only for
        parts that do nothing but forbid. Default: no."""
        return False

    def refuses(self, state: Slots, request: Request, token: int) -> bool:
        """Does the part for a token, now that it follows, forbid this one?"""
        return False

    def certain(self, state: Slots, request: Request, most: int) -> list[int]:
        """Where it waits, and every token is known: the next tokens, at most so many, as long as it leaves one choice alone.
        Default: none."""
        return []

    def forces(self, state: Slots, request: Request) -> bool:
        """Where it waits: does it leave one choice alone for the token after those that are known, and for the one after
        that?"""
        return False

    def follows(self, state: Slots, request: Request, drafts: Sequence[int]) -> int:
        """Every token is known: for how many of these guesses, from the first, can the step have the part? Default: all."""
        return len(drafts)

    def gates(self, request: Request) -> bool:
        """Where a request asks for it: must tokens of its prompt wait until the part for them can be built? Default: no."""
        return False

    def ready(self, request: Request, begin: int, end: int) -> int:
        """Where it gates: how many tokens of [begin, end), from the first, the part can be built for now. What the others wait
        for is begun. Default: all."""
        return end - begin

    def enter(self, slot: int, request: Request) -> None:
        """A sequence that asks for it has got this slot. Default: nothing."""
        return

    def leave(self, slot: int) -> None:
        """A sequence that asked for it has left this slot. Default: nothing."""
        return

    def take_failures(self) -> list[tuple[Request, str]]:
        """Requests that cannot go on, and why: those found since this was last asked. Default: none."""
        return []

    def is_active(self, work: StepRows) -> bool:
        """May the step have this part? Default: if a sequence asks for it."""
        return bool(work.flags & self.flag)

    @abstractmethod
    def build(self, work: StepRows) -> tuple[Part | None, int]:
        """The part, or None where the step needs none after all; and how many steps in which the same sequences decode it is
        right for, this one included. FOREVER: until sequences come or go. 1: it is asked again for the next step."""


class PerSequence(Builder):
    """Of a part whose every array has a row per sequence. Rows are kept by slot, and gathered when sequences come or go."""

    def __init__(self, setup: Setup) -> None:
        self._kept = self.part.blank({"S": setup.seqs + 1})

    @abstractmethod
    def row(self, request: Request) -> Mapping[str, Any]:
        """The values of a request that asks for it, by field."""

    def level(self, part: Part) -> int:
        """`Part.level` of these rows."""
        return 0

    def enter(self, slot: int, request: Request) -> None:
        for name, value in self.row(request).items():
            getattr(self._kept, name)[slot] = value

    def build(self, work: StepRows) -> tuple[Part | None, int]:
        """Rows of sequences that do not ask hold what fills the arrays."""
        part = self.part.blank({"S": work.slots.size})
        rows = np.nonzero(work.state.flags[work.slots] & self.flag)[0]
        for name in dims(self.part):
            getattr(part, name)[rows] = getattr(self._kept, name)[work.slots[rows]]
        part.level = self.level(part)
        return part, FOREVER


def builders(setup: Setup) -> tuple[Builder, ...]:
    """One of each kind, in the order of the features, each with a bit of its own."""
    made = []
    for i, feature in enumerate(all_features()):
        builder: Builder = import_attribute(feature.builder)(setup)
        builder.flag = PARTS << i
        made.append(builder)
    return tuple(made)
