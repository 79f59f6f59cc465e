"""Filling a StepBatch from a schedule, with array operations wherever hundreds of sequences decode.

Arrays that depend only on the members of the step (sampling parameters, features, most parts) are reused while the same
sequences decode, which is the steady state. Launched arrays are never written again. A part states for how many of these
steps it remains valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from thalweg.engine.control.cache.tables import KVCache
from thalweg.engine.control.parts.builder import FOREVER, Builder, ScoredRows, StepRows
from thalweg.engine.control.scheduler import Schedule
from thalweg.engine.control.slots import RANDOM, TRUNCATE, WAITS, Slots
from thalweg.hal.device import Pending
from thalweg.hal.fields import Part
from thalweg.hal.step import ON_DEVICE, Features, SamplingArrays, StepBatch, TableRows, features_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.engine.control.speculation.drafter import Draft

    I32 = NDArray[np.int32]
    I64 = NDArray[np.int64]


@dataclass(slots=True)
class LaunchedStep:
    """The record of a launched step, needed to read its result."""

    slots: I32
    serials: I64
    handles: I64
    reached: I32
    """Per row: tokens in the cache after the step."""
    emit: NDArray[np.bool_]
    all_emit: bool
    wants_logprobs: bool
    scored: list[ScoredRows]
    each: list[ScoredRows]
    pending: Pending
    decodes: int = 0
    prompt_tokens: int = 0
    launched: float = 0.0
    drafts: I32 | None = None
    """Per row; None: no row has any."""
    hoped: I64 | None = None
    """Rows sampled speculatively, before the part they depend on was known. None: no row."""
    streams: int = 0
    """Sequences past their prompt, in the step or not."""
    rationed: bool = True
    width: int = 0
    """Drafts that a sequence might have."""
    proposes: int = 0
    """Drafts of a sequence that the step proposes."""


@dataclass(slots=True)
class _BuilderOutput:
    """The output of a builder for the members of a step."""

    builder: Builder
    part: Part | None
    until: int
    """The age of the members at which the builder runs again."""


@dataclass(slots=True)
class _Members:
    """The sequences of a step, and everything derived from them."""

    slots: I32
    serials: I64
    handles: I64
    sampling: SamplingArrays
    random: bool
    truncate: bool
    logprobs: int
    held: list[_BuilderOutput]
    parts: tuple[Part, ...] = ()
    features: Features = field(default_factory=Features)
    each: list[ScoredRows] = field(default_factory=list)
    """Owners of the rows of `EachToken`, in this step."""
    width: int = 0
    """Drafts that each of them verifies."""
    age: int = 0
    """Steps they have decoded together."""
    until: int = 0
    """The age at which some part expires."""

    def settle(self) -> None:
        """Recompute `parts` and the fields derived from it."""
        self.parts = tuple(h.part for h in self.held if h.part is not None)
        self.features = features_of(self.parts, self.random, self.truncate, self.logprobs)
        self.until = min((h.until for h in self.held), default=FOREVER)

    def refresh(self, work: StepRows) -> None:
        """Rebuild expired parts."""
        for h in self.held:
            if h.until <= self.age:
                h.part, lasts = h.builder.build(work)
                h.until = self.age + _bound_life(lasts, self.width)
        self.each = work.each
        self.settle()


class BatchBuilder:
    def __init__(
        self, slots: Slots, kv: KVCache, builders: Sequence[Builder] = (), drafts: int = 0, tables_kept: bool = False
    ) -> None:
        """builders: of the parts of a step. drafts: at most so many of a sequence in a step. tables_kept: the device keeps
        block tables and gets only changes."""
        self._builders, self._drafts = builders, drafts
        self._changes = _TableChanges(slots, kv) if tables_kept else None
        self._slots = slots
        self._kv = kv
        n = slots.count
        self._arange = np.arange(n, dtype=np.int32)
        self._ones = np.ones(n, np.int32)
        self._true = np.ones(n, np.bool_)
        for constant in (self._arange, self._ones, self._true):
            constant.flags.writeable = False
        self._members: _Members | None = None
        self._proposes = 0
        """Drafts that the last step proposes of a sequence."""

    def build(self, schedule: Schedule) -> tuple[StepBatch, LaunchedStep]:
        """Its batch; the slots' scheduled progress moves on. The record's `pending` is the caller's to fill."""
        s, decode = self._slots, schedule.decode
        if schedule.proposes != self._proposes:
            self._members, self._proposes = None, schedule.proposes
        uniform = _uniform(schedule)
        if uniform:
            return self._verifying(schedule.drafted, uniform - 1)
        positions = s.scheduled[decode]
        tokens = s.tokens[decode, positions]
        ahead = s.known[decode] <= positions
        tokens[ahead] = ON_DEVICE
        hoped = np.nonzero(ahead & (s.flags[decode] & WAITS != 0))[0]
        batch, record = (
            self._build_mixed(schedule, positions, tokens)
            if schedule.chunks or schedule.drafted
            else self._decoding(decode, positions, tokens)
        )
        record.hoped = hoped if hoped.size else None
        return batch, record

    def _decoding(self, decode: I32, positions: I32, tokens: I32) -> tuple[StepBatch, LaunchedStep]:
        """A step in which every sequence decodes one token."""
        s, n = self._slots, decode.size
        members = self._who(decode, positions)
        members.age += 1
        reached = positions + self._ones[:n]
        batch = StepBatch(
            tokens=tokens, token_seq=self._arange[:n], positions=positions, slots=members.slots, context=positions,
            query=self._ones[:n], last_row=self._arange[:n], emit=self._true[:n],
            block_tables=self._tables(decode, positions), sampling=members.sampling, uniform=1, features=members.features,
            parts=members.parts,
        )  # fmt: skip
        s.scheduled[decode] = reached
        s.length[decode] = reached + self._ones[:n]
        record = self._record(members, reached, self._true[:n], True, [])
        record.decodes = n
        return batch, record

    def _verifying(self, drafted: Sequence[Draft], width: int) -> tuple[StepBatch, LaunchedStep]:
        """A step in which every sequence verifies equally many drafts."""
        s, n = self._slots, len(drafted)
        slots = np.array([d.slot for d in drafted], np.int32)
        context = s.scheduled[slots]
        grid = _grid(n, width)
        tokens = np.empty((n, 1 + width), np.int32)
        tokens[:, 0] = s.tokens[slots, context]
        tokens[:, 1:] = [d.tokens for d in drafted]
        members = self._who(slots, context, width, drafted)
        members.age += 1
        reached = context + grid.query
        batch = StepBatch(
            tokens=tokens.reshape(-1), token_seq=grid.token_seq, positions=(context[:, None] + grid.columns).reshape(-1),
            slots=members.slots, context=context, query=grid.query, last_row=grid.last_row, emit=self._true[:n],
            block_tables=self._tables(slots, context), sampling=members.sampling, uniform=1 + width, features=members.features,
            parts=members.parts,
        )  # fmt: skip
        s.scheduled[slots] = s.length[slots] = reached
        s.proposed[slots] = width
        record = self._record(members, reached, self._true[:n], True, [])
        record.decodes, record.drafts = n, grid.drafts
        return batch, record

    def _build_mixed(self, schedule: Schedule, positions: I32, tokens: I32) -> tuple[StepBatch, LaunchedStep]:
        s, decode, chunks, drafted = self._slots, schedule.decode, schedule.chunks, schedule.drafted
        n, known = decode.size, decode.size + len(chunks)
        slots = np.concatenate([decode, np.array([c.slot for c in chunks] + [d.slot for d in drafted], np.int32)])
        takes = [c.take for c in chunks] + [1 + len(d.tokens) for d in drafted]
        query = np.concatenate([self._ones[:n], np.array(takes, np.int32)])
        context = s.scheduled[slots]
        emit = context + query >= s.length[slots]
        begins = context[n:].tolist()
        spans = [s.tokens[c.slot, at : at + c.take] for c, at in zip(chunks, begins, strict=False)]
        for draft, at in zip(drafted, begins[len(chunks) :], strict=True):
            spans.append(np.array([s.tokens[draft.slot, at], *draft.tokens], np.int32))
        all_positions = [np.arange(at, at + take, dtype=np.int32) for at, take in zip(begins, takes, strict=True)]
        drafts = None
        if drafted:
            drafts = query - self._ones[: query.size]
            drafts[:known] = 0
        work = StepRows(
            s, slots, context, query, self._combine_flags(slots), chunks, n, drafts, self._drafts, self._proposes, drafted
        )
        self._members = None  # not reused: this step mixes chunks and decodes
        members = self._assemble(work)
        batch = StepBatch(
            tokens=np.concatenate([tokens, *spans]), token_seq=np.repeat(np.arange(slots.size, dtype=np.int32), query),
            positions=np.concatenate([positions, *all_positions]), slots=slots, context=context, query=query,
            last_row=np.cumsum(query, dtype=np.int32) - np.int32(1), emit=emit, block_tables=self._tables(slots, context),
            sampling=members.sampling, uniform=0, features=members.features, parts=members.parts,
        )  # fmt: skip
        reached = context + query
        s.scheduled[slots] = reached
        s.length[slots[:known]] += emit[:known]
        record = self._record(members, reached, emit, bool(emit.all()), work.scored)
        record.decodes, record.prompt_tokens = n + len(drafted), sum(c.take for c in chunks)
        if drafts is not None:
            record.drafts = drafts
            s.length[slots[known:]] = reached[known:]
            s.proposed[slots[known:]] = drafts[known:]
        return batch, record

    def _record(
        self, members: _Members, reached: I32, emit: NDArray[np.bool_], all_emit: bool, scored: list[ScoredRows]
    ) -> LaunchedStep:
        wants = members.features.logprobs >= 0
        return LaunchedStep(
            members.slots, members.serials, members.handles, reached, emit, all_emit, wants, scored, members.each, _UNSET
        )

    def _tables(self, slots: I32, context: I32) -> tuple[I32 | TableRows, ...]:
        return self._kv.tables(slots, context) if self._changes is None else self._changes.rows(slots, context)

    # ------------------------------------------------------------------ who is in the step

    def _who(self, slots: I32, context: I32, width: int = 0, drafted: Sequence[Draft] = ()) -> _Members:
        """The last step's if the same sequences decode again, in the same order, each with as many drafts."""
        serials, members = self._slots.serial[slots], self._members
        same = (
            members is not None and members.width == width and members.serials.size == serials.size
            and not (members.serials != serials).any()
        )  # fmt: skip
        if members is not None and same and members.age < members.until:
            return members
        grid = _grid(slots.size, width)
        work = StepRows(
            self._slots, slots, context, grid.query, self._combine_flags(slots), drafts=grid.drafts if width else None,
            most_drafts=self._drafts, proposes=self._proposes, drafted=drafted,
        )  # fmt: skip
        if members is None or not same:
            members = self._members = self._assemble(work, width)
        else:
            members.refresh(work)
        return members

    def _combine_flags(self, slots: I32) -> int:
        return int(np.bitwise_or.reduce(self._slots.flags[slots]))

    def _assemble(self, work: StepRows, width: int = 0) -> _Members:
        s, slots, requested = self._slots, work.slots, work.flags
        built = [(b, *b.build(work)) for b in self._builders if b.is_active(work)]
        held = [_BuilderOutput(b, part, _bound_life(lasts, width)) for b, part, lasts in built]
        members = _Members(
            slots.copy(), s.serial[slots], s.handle[slots], s.gather(slots), bool(requested & RANDOM),
            bool(requested & TRUNCATE),
            int(s.logprobs[slots].max()), held, each=work.each, width=width,
        )  # fmt: skip
        members.settle()
        return members


@dataclass(frozen=True, slots=True)
class _Grid:
    """Arrays of a step by its sequences and the drafts of each. Nobody writes to them."""

    query: I32
    token_seq: I32
    last_row: I32
    columns: I32
    drafts: I32


@lru_cache(maxsize=256)
def _grid(seqs: int, width: int) -> _Grid:
    new = 1 + width
    query, owner = np.full(seqs, new, np.int32), np.repeat(np.arange(seqs, dtype=np.int32), new)
    last, columns = np.arange(new, seqs * new + 1, new, dtype=np.int32) - np.int32(1), np.arange(new, dtype=np.int32)
    result = _Grid(query, owner, last, columns, np.full(seqs, width, np.int32))
    for name in _Grid.__slots__:
        getattr(result, name).flags.writeable = False
    return result


def _bound_life(steps: int, width: int) -> int:
    """How many steps a part is valid for. Builders count steps of one token."""
    return min(steps, 1) if width and steps < FOREVER else steps


def _uniform(schedule: Schedule) -> int:
    """New tokens of every sequence, where all verify equally many drafts. 0: they differ."""
    if not schedule.drafted or schedule.decode.size or schedule.chunks:
        return 0
    widths = {len(d.tokens) for d in schedule.drafted}
    return 1 + widths.pop() if len(widths) == 1 else 0


class _TableChanges:
    """The block tables as the device has them. While a sequence stays in a slot its rows only grow. Entries that a group
    drops are not read again, so they may stay. A new stay has a new serial, and is sent whole."""

    def __init__(self, slots: Slots, kv: KVCache) -> None:
        self._slots, self._kv = slots, kv
        self._serial = np.zeros(slots.count + 1, np.int64)
        self._sent = np.zeros((len(kv.groups), slots.count + 1), np.int32)
        """Per group and slot: entries of the row."""

    def rows(self, slots: I32, context: I32) -> tuple[I32 | TableRows, ...]:
        """Table rows for a batch that will be launched. Groups with rows that do not grow send copies."""
        s = self._slots
        capacity = s.capacity[slots]
        tokens = int(capacity.max())
        fresh = self._serial[slots] != s.serial[slots]
        self._serial[slots] = s.serial[slots]
        out: list[I32 | TableRows] = []
        for g, sent in zip(self._kv.groups, self._sent, strict=True):
            table = g.growing
            if table is None:
                out.append(g.rows(slots, context, tokens))
                continue
            have = -(-capacity // np.int32(g.spec.block_tokens))
            before = np.where(fresh, np.int32(0), sent[slots])
            sent[slots] = have
            more = np.flatnonzero(have > before)
            first, count = before[more], (have - before)[more]
            row = np.repeat(slots[more], count)
            column = np.arange(row.size, dtype=np.int32) - np.repeat(np.cumsum(count) - count - first, count)
            places = row.astype(np.int64) * table.shape[1] + column
            out.append(TableRows(slots, -(-tokens // g.spec.block_tokens), table.shape, places, table[row, column]))
        return tuple(out)


class _UnlaunchedResult:
    """Placeholder until the step is launched."""

    def ready(self) -> bool:
        raise RuntimeError("the step has not been launched")

    def result(self) -> object:
        raise RuntimeError("the step has not been launched")


_UNSET: Pending = _UnlaunchedResult()  # type: ignore[assignment]
