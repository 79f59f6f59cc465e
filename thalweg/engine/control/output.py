"""Reading a step's result: new tokens into the slots, stop checks, full blocks to the prefix cache, outputs for the client.

A step with drafts returns a range of tokens per row. It is cut at the first that ends the sequence. Progress counts accepted
tokens, and only those are published to the prefix cache, or leave a window.

Rows of a sequence that has left its slot since the launch (stopped, aborted, preempted) are discarded here; see
`cache.tables` for why nothing else has to be undone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from thalweg.engine.control.batch import LaunchedStep
from thalweg.engine.control.cache.tables import KVCache
from thalweg.engine.control.invariant import ensure
from thalweg.engine.control.request import Request
from thalweg.engine.control.scheduler import Scheduler
from thalweg.engine.control.slots import MANY_STOPS, Slots
from thalweg.engine.messages import PooledVectors, PromptScores, SequenceFinished, TokenLogprobs, TokenVectors
from thalweg.hal.step import StepResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.engine.control.parts.builder import Builder, ScoredRows

    I32 = NDArray[np.int32]
    I64 = NDArray[np.int64]

NOT_A_NUMBER = "the model's output for this sequence was not a number; nothing of it was kept"


@dataclass(slots=True)
class StepOutput:
    """The part of a result that goes into Outputs."""

    handles: I64
    tokens: I32
    ended: list[tuple[Request, SequenceFinished]] = field(default_factory=list)
    """Ended requests, which the caller removes from the scheduler."""
    logprobs: TokenLogprobs | None = None
    prompt_scores: list[PromptScores] = field(default_factory=list)
    pooled: PooledVectors | None = None
    each: list[TokenVectors] = field(default_factory=list)
    frames: np.ndarray | None = None
    """As `Outputs.frames`."""


class ResultReader:
    def __init__(self, slots: Slots, kv: KVCache, scheduler: Scheduler, builders: Sequence[Builder] = ()) -> None:
        """builders: of the parts of a step, which may reject tokens sampled without them."""
        self._builders = builders
        self._slots = slots
        self._kv = kv
        self._scheduler = scheduler

    def read(self, step: LaunchedStep, result: StepResult) -> StepOutput:
        s, n = self._slots, step.slots.size
        live = s.serial[step.slots] == step.serials
        invalid = None if result.invalid is None else np.asarray(result.invalid)[:n] & live
        ended: list[tuple[Request, SequenceFinished]] = []
        if invalid is not None and invalid.any():
            for slot in step.slots[invalid].tolist():
                request = self._request(slot)
                ended.append((request, SequenceFinished(request.handle, "error", error=NOT_A_NUMBER)))
            live &= ~invalid
        if step.hoped is not None:
            live = self._reject_invalid(step, result, live)
        if step.drafts is not None and n == 1 and live[0] and step.emit[0]:
            return self._read_range(step, result, ended)
        if step.drafts is not None:
            return self._read_ranges(step, result, live, ended)
        self._advance(step, live, step.reached)
        good = live if step.all_emit else live & step.emit
        if result.pooled is not None:
            news = self._read_vectors(step, np.asarray(result.pooled), np.nonzero(good)[0], ended)
            self._prompt_results(step, result, news)
            return news
        rows = None if good.all() else np.nonzero(good)[0]  # None: every row
        slots = step.slots if rows is None else step.slots[rows]
        tokens = np.asarray(result.tokens)[:n, 0] if rows is None else np.asarray(result.tokens)[rows, 0]
        known = s.known[slots]
        s.tokens[slots, np.minimum(known, s.tokens.shape[1] - 1)] = tokens
        known = known + np.int32(1)
        s.known[slots] = known
        if result.drafts is not None:
            self._receive(result, slots, np.arange(n) if rows is None else rows)
        if result.frames is not None:
            frames = np.array(np.asarray(result.frames)[:n] if rows is None else np.asarray(result.frames)[rows], np.int32)
            for slot, frame in zip(slots.tolist(), frames, strict=True):
                self._request(slot).frames.append(frame)
        self._ends(slots, tokens, known, ended)
        news = StepOutput(step.handles if rows is None else step.handles[rows], tokens.astype(np.int32), ended)
        news.frames = None if result.frames is None else frames
        if step.wants_logprobs and result.logprobs is not None:
            news.logprobs = self._logprobs(result, slots, np.arange(n) if rows is None else rows)
        self._prompt_results(step, result, news)
        return news

    def _read_ranges(
        self, step: LaunchedStep, result: StepResult, live: NDArray[np.bool_], ended: list[tuple[Request, SequenceFinished]]
    ) -> StepOutput:
        """The same for a step that may return several tokens a row: accepted tokens, cut where the sequence ends."""
        s, drafts = self._slots, step.drafts
        assert drafts is not None
        rows = np.flatnonzero(live if step.all_emit else live & step.emit)
        slots, drafted = step.slots[rows], drafts[rows]
        grid, counts = np.asarray(result.tokens)[rows], np.asarray(result.counts)[rows]
        fits = all(1 <= n <= 1 + most for n, most in zip(counts.tolist(), drafted.tolist(), strict=True))
        ensure(fits, "a step returned more tokens than it was asked for")
        has = np.flatnonzero(drafted)
        again = slots[has]
        if self._scheduler.speculator is not None and again.size:
            self._scheduler.speculator.count_accepted(again, counts[has] - 1)
        before = s.known[slots]
        at, place = np.nonzero(np.arange(grid.shape[1]) < counts[:, None])
        owner, tokens, known = slots[at], grid[at, place].astype(np.int32, copy=False), before[at] + place + 1
        stop = self._is_stop(owner, tokens, known)
        end = stop | (known >= s.limit[owner])
        if end.any():
            first = np.full(rows.size, grid.shape[1])
            np.minimum.at(first, at[end], place[end])
            counts = np.minimum(counts, first + 1)
            kept = np.flatnonzero(place < counts[at])
            at, place, owner, tokens, known = at[kept], place[kept], owner[kept], tokens[kept], known[kept]
            self._record_ends(owner, tokens, stop[kept], end[kept], ended)
        s.tokens[owner, np.minimum(known - 1, s.tokens.shape[1] - 1)] = tokens
        s.known[slots] = before + counts
        if result.drafts is not None:
            self._receive(result, slots, rows)
        reached = step.reached.copy()
        reached[rows[has]] -= 1 + drafted[has] - counts[has]
        self._advance(step, live, reached)
        s.scheduled[again], s.length[again], s.proposed[again] = s.returned[again], s.known[again], 0
        news = StepOutput(step.handles[rows[at]], tokens, ended)
        if step.wants_logprobs and result.logprobs is not None:
            news.logprobs = self._logprobs(result, slots[at], rows[at] * grid.shape[1] + place)
        self._prompt_results(step, result, news)
        return news

    def _read_range(self, step: LaunchedStep, result: StepResult, ended: list[tuple[Request, SequenceFinished]]) -> StepOutput:
        """The same for one sequence, which needs no operations on arrays: those would take as long as a small model's step."""
        s, slot, slots = self._slots, int(step.slots[0]), step.slots
        assert step.drafts is not None
        drafted, count = int(step.drafts[0]), int(np.asarray(result.counts)[0])
        ensure(1 <= count <= 1 + drafted, "a step returned more tokens than it was asked for")
        if self._scheduler.speculator is not None and drafted:
            self._scheduler.speculator.count_accepted(slots, np.array([count - 1], np.int32))
        tokens, before = np.asarray(result.tokens)[0, :count].tolist(), int(s.known[slot])
        stop_from, limit, stops = int(s.stop_from[slot]), int(s.limit[slot]), set(s.stops[slot].tolist())
        if int(s.flags[slot]) & MANY_STOPS:
            sampling = self._request(slot).sampling
            stops |= {*sampling.eos_ids, *sampling.stop_ids}
        for known, token in enumerate(tokens, before + 1):
            stop = token in stops and known >= stop_from
            if stop or known >= limit:
                tokens = tokens[: known - before]
                self._record_ends(slots, np.array([token], np.int32), np.array([stop]), np.array([True]), ended)
                break
        s.tokens[slot, before : before + len(tokens)] = tokens
        s.known[slot] = before + len(tokens)
        if result.drafts is not None:
            self._receive(result, slots, np.zeros(1, np.int64))
        rejected = 1 + drafted - len(tokens) if drafted else 0
        self._advance(step, np.ones(1, np.bool_), step.reached - np.int32(rejected))
        if drafted:
            s.scheduled[slot], s.length[slot], s.proposed[slot] = s.returned[slot], s.known[slot], 0
        each = np.zeros(len(tokens), np.int64)
        news = StepOutput(step.handles[each], np.array(tokens, np.int32), ended)
        if step.wants_logprobs and result.logprobs is not None:
            news.logprobs = self._logprobs(result, slots[each], np.arange(len(tokens)))
        self._prompt_results(step, result, news)
        return news

    def _receive(self, result: StepResult, slots: I32, rows: NDArray[np.int64]) -> None:
        """Pass on the drafts that the step proposed after the tokens just noted."""
        if self._scheduler.speculator is not None:
            self._scheduler.speculator.receive(slots, np.asarray(result.drafts)[rows])

    def _reject_invalid(self, step: LaunchedStep, result: StepResult, live: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """`live`, less the rows with tokens that turn out to be forbidden. Those sequences are rewound."""
        assert step.hoped is not None
        live, s = live.copy(), self._slots
        for row in step.hoped[live[step.hoped]].tolist():
            slot, token = int(step.slots[row]), int(np.asarray(result.tokens)[row, 0])
            request, flags = self._request(slot), int(s.flags[slot])
            if any(b.refuses(s, request, token) for b in self._builders if flags & b.flag):
                s.rewind(slot)
                live[row] = False
        return live

    def _read_vectors(
        self,
        step: LaunchedStep,
        vectors: NDArray[np.float32],
        rows: NDArray[np.int64],
        ended: list[tuple[Request, SequenceFinished]],
    ) -> StepOutput:
        """End every sequence, with its vector."""
        for slot in step.slots[rows].tolist():
            request = self._request(slot)
            ended.append((request, SequenceFinished(request.handle, "stop")))
        pooled = PooledVectors(step.handles[rows], vectors[rows])
        return StepOutput(np.empty(0, np.int64), np.empty(0, np.int32), ended, pooled=pooled)

    def _request(self, slot: int) -> Request:
        request = self._slots.requests[slot]
        assert request is not None
        return request

    def _advance(self, step: LaunchedStep, live: NDArray[np.bool_], reached: I32) -> None:
        """Advance the returned progress, and publish the blocks it completes."""
        s = self._slots
        slots, reached = (step.slots, reached) if live.all() else (step.slots[live], reached[live])
        s.returned[slots] = reached
        for slot in slots[reached >= s.publish_at[slots]].tolist():
            request = self._request(slot)
            self._scheduler.release_claims(request, self._kv.advance(slot, request))

    def _is_stop(self, slots: I32, tokens: I32, known: I32) -> NDArray[np.bool_]:
        """Which tokens end their sequence, given that no earlier one does. All [N]; known: tokens of the sequence, including
        each."""
        s = self._slots
        stop: NDArray[np.bool_] = (s.stops[slots] == tokens[:, None]).any(axis=1)
        many = np.nonzero(s.flags[slots] & MANY_STOPS)[0]
        for row in many.tolist():
            p = self._request(int(slots[row])).sampling
            stop[row] = int(tokens[row]) in p.eos_ids or int(tokens[row]) in p.stop_ids
        stop &= known >= s.stop_from[slots]
        return stop

    def _ends(self, slots: I32, tokens: I32, known: I32, ended: list[tuple[Request, SequenceFinished]]) -> None:
        """Record sequences that end with their last token."""
        stop = self._is_stop(slots, tokens, known)
        self._record_ends(slots, tokens, stop, stop | (known >= self._slots.limit[slots]), ended)

    def _record_ends(
        self, slots: I32, tokens: I32, stop: NDArray[np.bool_], end: NDArray[np.bool_],
        ended: list[tuple[Request, SequenceFinished]],
    ) -> None:  # fmt: skip
        """Record the sequences of the tokens [N] that end one, by a stop id or by the limit."""
        for row in np.nonzero(end)[0].tolist():
            request = self._request(int(slots[row]))
            if not stop[row]:
                ended.append((request, SequenceFinished(request.handle, "length")))
                continue
            token = int(tokens[row])
            eos = token in request.sampling.eos_ids
            ended.append((request, SequenceFinished(request.handle, "stop", stop_id=-1 if eos else token)))

    def _logprobs(self, result: StepResult, slots: I32, rows: NDArray[np.int64]) -> TokenLogprobs | None:
        """slots, rows: of each token of the output, its sequence and its row of the result's logprobs."""
        requested = np.nonzero(self._slots.logprobs[slots] >= 0)[0]
        if not requested.size or result.logprobs is None:
            return None
        at, found = rows[requested], result.logprobs
        return TokenLogprobs(
            requested.astype(np.int32), np.asarray(found.tokens)[at], np.asarray(found.values)[at], np.asarray(found.ranks)[at]
        )

    def _prompt_results(self, step: LaunchedStep, result: StepResult, news: StepOutput) -> None:
        if step.scored:
            self._scores(step, result, news)
        if step.each:
            self._each(step, result, news)

    def _scores(self, step: LaunchedStep, result: StepResult, news: StepOutput) -> None:
        found = result.score
        ensure(found is not None, "a step was asked for prompt logprobs and returned none")
        assert found is not None
        for part in self._live_prompts(step.scored, news):
            request = part.request
            k, span = 1 + request.sampling.prompt_logprobs, slice(part.begin, part.end)
            tokens, values = np.asarray(found.tokens)[span, :k], np.asarray(found.values)[span, :k]
            news.prompt_scores.append(PromptScores(request.handle, part.start, tokens, values, np.asarray(found.ranks)[span]))
            request.scored = part.start + part.end - part.begin

    def _each(self, step: LaunchedStep, result: StepResult, news: StepOutput) -> None:
        found = result.each
        ensure(found is not None, "a step was asked for a result per token and returned none")
        values = np.asarray(found, np.float32)
        for part in self._live_prompts(step.each, news):
            news.each.append(TokenVectors(part.request.handle, part.start, values[part.begin : part.end]))
            part.request.scored = part.start + part.end - part.begin + 1

    def _live_prompts(self, parts: Sequence[ScoredRows], news: StepOutput) -> Iterator[ScoredRows]:
        """Those of a step's prompts whose sequences still run, and have not failed with it."""
        failed = {request.handle for request, end in news.ended if end.reason == "error"}
        for part in parts:
            slot = part.request.slot
            if slot and self._slots.serial[slot] == part.serial and part.request.handle not in failed:
                yield part
