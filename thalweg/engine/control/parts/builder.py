"""The base classes of builders of parts, and their view of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from thalweg.engine.control.slots import LOOKBACK, PARTS, UNDRAFTED, Slots
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
    """The facts a builder gets when it is made."""

    seqs: int
    """Most sequences of a step: slots are 1..seqs."""
    max_len: int
    vocab: int
    grammars: Grammars | None = None
    """The compiler of grammars. None: no request has one."""
    encodings: Encodings | None = None
    """None: no request has inputs to encode."""
    top: int = 0
    """Most tokens that a token attends to, in layers with sparse attention. 0 = all."""
    adapters: AdapterSlots | None = None
    """None: no request has an adapter."""


@dataclass(slots=True)
class ScoredRows:
    """Rows [begin, end) of StepResult.score, or of `each` there, are the prompt tokens of `request` from position `start`."""

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
    """Features that any of the sequences uses (`Slots.flags`)."""
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
    """For the record of the step: the owners of the prompt tokens of `Scores`."""
    each: list[ScoredRows] = field(default_factory=list)
    """The same of `EachToken`."""

    def rows(self, flag: int) -> list[tuple[int, Request]]:
        """(row, request) of the sequences with any of these flags."""
        rows = np.nonzero(self.state.flags[self.slots] & flag)[0].tolist()
        return [(row, r) for row in rows if (r := self.state.requests[int(self.slots[row])]) is not None]

    def logit_rows(self, row: int) -> list[int]:
        """The rows of logits of a sequence as parts name them, in the order of their tokens. -1 - i is the row before draft i
        of the step, and `row` is the last."""
        if self.drafts is None:
            return [row]
        end = int(self.drafts[: row + 1].sum())
        return [*(-1 - i for i in range(end - int(self.drafts[row]), end)), row]

    def first_token(self, row: int) -> int:
        """Index in T of a row's first new token."""
        return int(self.query[:row].sum())


class Builder(ABC):
    """Fills one kind of part. Made once per engine; one thread drives it."""

    part: ClassVar[type[Part]]
    looks_back: ClassVar[bool] = False
    """The step reads the history of sequences that use this part: tokens it does not compute must be written there."""
    flag: int = 0
    """The bit of `Slots.flags` of this part."""

    @property
    def flags(self) -> int:
        """All bits of a sequence that uses it."""
        return self.flag | LOOKBACK * self.looks_back | UNDRAFTED * (self.part.logits and not self.part.drafts)

    def __init__(self, setup: Setup) -> None:
        """Subclasses keep the facts they need."""
        return

    def applies(self, request: Request) -> bool:
        """Does a request use it? Default: where its sampling parameters do (`is_enabled`)."""
        return self.is_enabled(request.sampling)

    def is_enabled(self, p: TokenSampling) -> bool:
        """Do sampling parameters use it? Default: no, it follows from the step (`is_active`)."""
        return False

    def waits(self, p: TokenSampling) -> bool:
        """Does token t's part depend on token t-1, where a request uses it? Default: no."""
        return False

    def hopes(self, p: TokenSampling) -> bool:
        """Where it waits: may a token be sampled before the part is known, and be checked afterwards (`refuses`)? Only for
        parts that do nothing but forbid. Default: no."""
        return False

    def refuses(self, state: Slots, request: Request, token: int) -> bool:
        """Does the part for a token, now that it is known, forbid this one?"""
        return False

    def certain(self, state: Slots, request: Request, most: int) -> list[int]:
        """Where it waits, and every token is known: up to `most` next tokens, as long as only one choice is allowed. Default:
        none."""
        return []

    def forces(self, state: Slots, request: Request) -> bool:
        """Where it waits: are the next two tokens after the known ones both forced?"""
        return False

    def follows(self, state: Slots, request: Request, drafts: Sequence[int]) -> int:
        """Every token is known: for how many of these drafts, from the first, can the step have the part? Default: all."""
        return len(drafts)

    def gates(self, request: Request) -> bool:
        """Where a request uses it: must tokens of its prompt wait until the part for them can be built? Default: no."""
        return False

    def ready(self, request: Request, begin: int, end: int) -> int:
        """Where it gates: how many tokens of [begin, end), from the first, the part can be built for now. Starts the work
        that the others wait for. Default: all."""
        return end - begin

    def enter(self, slot: int, request: Request) -> None:
        """A sequence that uses it has got this slot. Default: nothing."""
        return

    def leave(self, slot: int) -> None:
        """A sequence that used it has left this slot. Default: nothing."""
        return

    def take_failures(self) -> list[tuple[Request, str]]:
        """Requests that cannot continue, with the reasons: those found since the last call. Default: none."""
        return []

    def is_active(self, work: StepRows) -> bool:
        """May the step have this part? Default: if a sequence uses it."""
        return bool(work.flags & self.flag)

    @abstractmethod
    def build(self, work: StepRows) -> tuple[Part | None, int]:
        """(part, steps). part: None where the step needs none after all. steps: how many steps it is valid for, this one
        included, while the same sequences decode. FOREVER: until sequences come or go. 1: `build` is called again for the
        next step."""


class PerSequence(Builder):
    """A builder of a part with a row per sequence in every array. Rows are kept by slot, and gathered when sequences come or
    go."""

    def __init__(self, setup: Setup) -> None:
        self._kept = self.part.blank({"S": setup.seqs + 1})

    @abstractmethod
    def row(self, request: Request) -> Mapping[str, Any]:
        """The values of a request that uses it, by field."""

    def level(self, part: Part) -> int:
        """`Part.level` of these rows."""
        return 0

    def enter(self, slot: int, request: Request) -> None:
        for name, value in self.row(request).items():
            getattr(self._kept, name)[slot] = value

    def build(self, work: StepRows) -> tuple[Part | None, int]:
        """Rows of sequences without this part keep the blank value."""
        part = self.part.blank({"S": work.slots.size})
        rows = np.nonzero(work.state.flags[work.slots] & self.flag)[0]
        for name in dims(self.part):
            getattr(part, name)[rows] = getattr(self._kept, name)[work.slots[rows]]
        part.level = self.level(part)
        return part, FOREVER


def builders(setup: Setup) -> tuple[Builder, ...]:
    """One builder of each kind, in the order of the features, each with a unique bit."""
    result = []
    for i, feature in enumerate(all_features()):
        builder: Builder = import_attribute(feature.builder)(setup)
        builder.flag = PARTS << i
        result.append(builder)
    return tuple(result)
