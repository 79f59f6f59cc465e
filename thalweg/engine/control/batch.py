"""Filling a StepBatch from a schedule, with array operations wherever hundreds of sequences decode.

What depends only on who is in the step (sampling parameters, bias and mask rows, features) is kept from the last step
and used again while the same sequences decode, which is the steady state; launched arrays are never written again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from thalweg.engine.control import slots as flags
from thalweg.engine.control.cache.tables import KVCache
from thalweg.engine.control.request import Request
from thalweg.engine.control.scheduler import Chunk, Schedule
from thalweg.engine.control.slots import Slots
from thalweg.hal.device import Pending
from thalweg.hal.step import ON_DEVICE, Features, SamplingArrays, StepBatch, TableRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    I32 = NDArray[np.int32]
    I64 = NDArray[np.int64]

FOREVER = 1 << 30
_NO_PICK = np.empty((0, 1), np.int32)


@dataclass(slots=True)
class Scored:
    """Rows [begin, end) of StepResult.score are the prompt tokens of `request` from position `start`."""

    request: Request
    serial: int
    start: int
    begin: int
    end: int


@dataclass(slots=True)
class Launched:
    """What must be known of a step to read its result."""

    slots: I32
    serials: I64
    handles: I64
    reached: I32
    """Per row: tokens in the cache after the step."""
    emit: NDArray[np.bool_]
    all_emit: bool
    wants_logprobs: bool
    scored: list[Scored]
    pending: Pending
    decodes: int = 0
    prompt_tokens: int = 0
    launched: float = 0.0
    drafts: I32 | None = None
    """Per row; None: no row has any."""
    streams: int = 0
    """Sequences past their prompt, in the step or not."""


@dataclass(slots=True)
class _Members:
    """The sequences of a step, and everything that follows from those alone."""

    slots: I32
    serials: I64
    handles: I64
    sampling: SamplingArrays
    features: Features
    mask: NDArray[np.uint32] | None
    bad_row: I32
    bad_words: I32
    bias: tuple[I32, I32, NDArray[np.float32]]
    bias_steps: int = FOREVER
    """Decode steps for which `bias` stays right: until the first sequence reaches min_tokens."""


@dataclass(slots=True)
class _Extra:
    """The parts of a batch that only some steps have."""

    history: list[tuple[int, I32]] = field(default_factory=list)
    score_rows: list[I32] = field(default_factory=list)
    score_targets: list[I32] = field(default_factory=list)
    scored: list[Scored] = field(default_factory=list)
    top: int = -1


class BatchBuilder:
    def __init__(self, slots: Slots, kv: KVCache, vocab: int, drafts: int = 0, tables_kept: bool = False) -> None:
        """drafts: at most so many of a sequence in a step. tables_kept: the device keeps block tables and is told what
        changed."""
        self._drafts = drafts
        self._changes = _Changes(slots, kv) if tables_kept else None
        self._slots = slots
        self._kv = kv
        self._words = -(-vocab // 32)
        n = slots.count
        self._arange = np.arange(n, dtype=np.int32)
        self._ones = np.ones(n, np.int32)
        self._true = np.ones(n, np.bool_)
        for constant in (self._arange, self._ones, self._true):
            constant.flags.writeable = False
        self._empty = np.empty(0, np.int32)
        self._members: _Members | None = None

    def build(self, schedule: Schedule) -> tuple[StepBatch, Launched]:
        """The batch of this plan; the slots' scheduled progress moves on. The record's `pending` is the caller's to fill."""
        s, decode = self._slots, schedule.decode
        n = decode.size
        positions = s.scheduled[decode]
        tokens = s.tokens[decode, positions]
        tokens[s.known[decode] <= positions] = ON_DEVICE
        if schedule.chunks or schedule.drafted:
            return self._mixed(schedule, positions, tokens)
        members = self._who(decode)
        members.bias_steps -= 1
        none = self._empty
        reached = positions + self._ones[:n]
        batch = StepBatch(
            tokens=tokens, token_seq=self._arange[:n], positions=positions, slots=members.slots, context=positions,
            query=self._ones[:n], last_row=self._arange[:n], emit=self._true[:n],
            block_tables=self._tables(decode, positions), sampling=members.sampling, uniform=1, features=members.features,
            mask=members.mask, bias_row=members.bias[0], bias_token=members.bias[1], bias_value=members.bias[2],
            bad_row=members.bad_row, bad_words=members.bad_words, history_slot=none, history_pos=none, history_token=none,
            score_rows=none, score_targets=none, draft_row=none, draft_pick=_NO_PICK,
        )  # fmt: skip
        s.scheduled[decode] = reached
        s.length[decode] = reached + self._ones[:n]
        record = self._record(members, reached, self._true[:n], True, [])
        record.decodes = n
        return batch, record

    def _mixed(self, schedule: Schedule, positions: I32, tokens: I32) -> tuple[StepBatch, Launched]:
        s, decode, chunks, drafted = self._slots, schedule.decode, schedule.chunks, schedule.drafted
        n, known = decode.size, decode.size + len(chunks)
        slots = np.concatenate([decode, np.array([c.slot for c in chunks] + [d.slot for d in drafted], np.int32)])
        takes = [c.take for c in chunks] + [1 + len(d.tokens) for d in drafted]
        query = np.concatenate([self._ones[:n], np.array(takes, np.int32)])
        context = s.scheduled[slots]
        ends = np.cumsum(query, dtype=np.int32)
        emit = context + query >= s.length[slots]
        extra = _Extra()
        all_tokens, all_positions = [tokens], [positions]
        for i, chunk in enumerate(chunks, n):
            begin = int(context[i])
            span = s.tokens[chunk.slot, begin : begin + chunk.take]
            all_tokens.append(span)
            all_positions.append(np.arange(begin, begin + chunk.take, dtype=np.int32))
            self._extras(extra, chunk, begin, int(ends[i]) - chunk.take)
        for i, draft in enumerate(drafted, known):
            begin = int(context[i])
            all_tokens.append(np.array([s.tokens[draft.slot, begin], *draft.tokens], np.int32))
            all_positions.append(np.arange(begin, begin + 1 + len(draft.tokens), dtype=np.int32))
        members = self._who(slots)
        self._members = None  # min_tokens bans were made for this mixture of chunks and decodes
        history = extra.history
        features = members.features
        if extra.scored:
            features = replace(features, score=extra.top)
        drafts, draft_row, draft_pick = self._guesses(query, ends, known)
        if drafted:
            features = replace(features, drafts=self._drafts)
        batch = StepBatch(
            tokens=np.concatenate(all_tokens), token_seq=np.repeat(np.arange(slots.size, dtype=np.int32), query),
            positions=np.concatenate(all_positions), slots=slots, context=context, query=query, last_row=ends - np.int32(1),
            emit=emit, block_tables=self._tables(slots, context), sampling=members.sampling, features=features,
            mask=members.mask,
            bias_row=members.bias[0], bias_token=members.bias[1], bias_value=members.bias[2],
            bad_row=members.bad_row, bad_words=members.bad_words,
            history_slot=_join([np.full(t.size, slot, np.int32) for slot, t in history]),
            history_pos=_join([np.arange(t.size, dtype=np.int32) for _, t in history]),
            history_token=_join([t for _, t in history]),
            score_rows=_join(extra.score_rows), score_targets=_join(extra.score_targets),
            draft_row=draft_row, draft_pick=draft_pick,
        )  # fmt: skip
        reached = context + query
        s.scheduled[slots] = reached
        s.length[slots[:known]] += emit[:known]
        record = self._record(members, reached, emit, bool(emit.all()), extra.scored)
        record.decodes, record.prompt_tokens = n + len(drafted), sum(c.take for c in chunks)
        if drafted:
            record.drafts = drafts
            s.length[slots[known:]] = reached[known:]
            s.proposed[slots[known:]] = drafts[known:]
        return batch, record

    def _guesses(self, query: I32, ends: I32, known: int) -> tuple[I32, I32, I32]:
        """Drafts per row, and `draft_row` and `draft_pick` of the batch: rows from `known` on are a token and its drafts."""
        drafts = query - self._ones[: query.size]
        drafts[:known] = 0
        if known == query.size:
            return drafts, self._empty, _NO_PICK
        column, last = np.arange(self._drafts + 1, dtype=np.int32), np.cumsum(drafts, dtype=np.int32)
        picked = column < drafts[:, None]
        pick = np.where(picked, (last - drafts)[:, None] + column, np.int32(-1))
        return drafts, ((ends - drafts)[:, None] + column)[picked], pick

    def _record(
        self, members: _Members, reached: I32, emit: NDArray[np.bool_], all_emit: bool, scored: list[Scored]
    ) -> Launched:
        wants = members.features.logprobs >= 0
        return Launched(members.slots, members.serials, members.handles, reached, emit, all_emit, wants, scored, pending=_UNSET)

    def _tables(self, slots: I32, context: I32) -> tuple[I32 | TableRows, ...]:
        return self._kv.tables(slots, context) if self._changes is None else self._changes.rows(slots, context)

    def _extras(self, extra: _Extra, chunk: Chunk, begin: int, row: int) -> None:
        """What a chunk needs beyond its tokens: history of cached tokens it does not compute, and prompt scores."""
        s, slot = self._slots, chunk.slot
        request = s.requests[slot]
        assert request is not None
        if chunk.cached > 0 and s.flags[slot] & flags.LOOKBACK:
            extra.history.append((slot, s.tokens[slot, : chunk.cached].copy()))
        if request.sampling.prompt_logprobs < 0:
            return
        first = max(begin + 1, request.scored_scheduled)
        last = min(begin + chunk.take, request.prompt_len - 1)  # the tokens at positions first..last are scored
        if first > last:
            return
        count, at = last - first + 1, sum(r.size for r in extra.score_rows)
        extra.score_rows.append(np.arange(count, dtype=np.int32) + np.int32(row + first - 1 - begin))
        extra.score_targets.append(s.tokens[slot, first : last + 1].copy())
        extra.scored.append(Scored(request, int(s.serial[slot]), first, at, at + count))
        extra.top = max(extra.top, request.sampling.prompt_logprobs)
        request.scored_scheduled = last + 1

    # ------------------------------------------------------------------ who is in the step

    def _who(self, slots: I32) -> _Members:
        """The last step's if the same sequences decode again, in the same order."""
        s, members = self._slots, self._members
        serials = s.serial[slots]
        if members is None or members.serials.size != serials.size or (members.serials != serials).any():
            members = self._members = self._assemble(slots, serials)
        elif members.bias_steps <= 0:
            members.bias, members.bias_steps = self._bias(slots)
            members.features = replace(members.features, bias=members.bias[0].size > 0)
        return members

    def _assemble(self, slots: I32, serials: I64) -> _Members:
        s = self._slots
        union = int(np.bitwise_or.reduce(s.flags[slots]))
        none = (self._empty, self._empty, np.empty(0, np.float32))
        bias, steps = self._bias(slots) if union & (flags.BIAS | flags.BANS) else (none, FOREVER)
        bad_row, bad_words = self._bad_words(slots) if union & flags.BAD_WORDS else (self._empty, np.empty((0, 1), np.int32))
        features = Features(
            random=bool(union & flags.RANDOM), truncate=bool(union & flags.TRUNCATE), lookback=bool(union & flags.LOOKBACK),
            bias=bias[0].size > 0, mask=bool(union & flags.MASK), logprobs=int(s.logprobs[slots].max()),
        )  # fmt: skip
        mask = self._mask(slots) if union & flags.MASK else None
        return _Members(
            slots.copy(), serials, s.handle[slots], s.gather(slots), features, mask, bad_row, bad_words, bias, steps,
        )  # fmt: skip

    def _rows(self, slots: I32, flag: int) -> list[tuple[int, Request]]:
        """(row, request) of the sequences with any of these flags."""
        rows = np.nonzero(self._slots.flags[slots] & flag)[0].tolist()
        return [(row, r) for row in rows if (r := self._slots.requests[int(slots[row])]) is not None]

    def _bias(self, slots: I32) -> tuple[tuple[I32, I32, NDArray[np.float32]], int]:
        """Rows, tokens and values to add, and for how many decode steps they hold. Stop ids are banned while fewer than
        min_tokens are out: the token a step samples has the index `length`."""
        rows: list[int] = []
        tokens: list[int] = []
        values: list[float] = []
        steps = FOREVER
        ban = float("-inf")
        for row, request in self._rows(slots, flags.BIAS | flags.BANS):
            p = request.sampling
            pairs = [*p.logit_bias, *((w[0], ban) for w in p.bad_words if len(w) == 1)]
            left = int(self._slots.stop_from[slots[row]] - self._slots.length[slots[row]])
            if left > 0:
                pairs += [(i, ban) for i in (*p.eos_ids, *p.stop_ids)]
                steps = min(steps, left)
            rows += [row] * len(pairs)
            tokens += [t for t, _ in pairs]
            values += [v for _, v in pairs]
        return (np.array(rows, np.int32), np.array(tokens, np.int32), np.array(values, np.float32)), steps

    def _bad_words(self, slots: I32) -> tuple[I32, I32]:
        found = [(row, w) for row, r in self._rows(slots, flags.BAD_WORDS) for w in r.sampling.bad_words if len(w) > 1]
        words = np.full((len(found), max(len(w) for _, w in found)), -1, np.int32)
        for i, (_, w) in enumerate(found):
            words[i, -len(w) :] = w
        return np.array([row for row, _ in found], np.int32), words

    def _mask(self, slots: I32) -> NDArray[np.uint32]:
        mask = np.full((slots.size, self._words), 0xFFFFFFFF, np.uint32)
        for row, request in self._rows(slots, flags.MASK):
            mask[row] = 0
            ids = np.array(request.sampling.allowed_ids, np.int64)
            np.bitwise_or.at(mask[row], ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
        return mask


class _Changes:
    """What of the block tables the device has been sent. While a sequence stays in a slot its rows only grow; what a group
    drops is not looked at again, so it may stay. Another stay has another serial, and is sent whole."""

    def __init__(self, slots: Slots, kv: KVCache) -> None:
        self._slots, self._kv = slots, kv
        self._serial = np.zeros(slots.count + 1, np.int64)
        self._sent = np.zeros((len(kv.groups), slots.count + 1), np.int32)
        """Per group and slot: entries of the row."""

    def rows(self, slots: I32, context: I32) -> tuple[I32 | TableRows, ...]:
        """For a batch that will be launched. Groups whose rows do not grow send copies."""
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


class _Unset:
    """Stands in until the step is launched."""

    def ready(self) -> bool:
        raise RuntimeError("the step has not been launched")

    def result(self) -> object:
        raise RuntimeError("the step has not been launched")


_UNSET: Pending = _Unset()  # type: ignore[assignment]


def _join(parts: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate(parts) if parts else np.empty(0, np.int32)
