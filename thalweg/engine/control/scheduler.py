"""Selects the sequences of the next step: a pure function of requests and results, never of time or set order.

A step has at most `token_budget` tokens. First every running sequence ready to decode gets one, in rank order (priority, then
arrival). Then sequences in the middle of their prompt get a chunk each, then waiting ones enter. Remaining tokens go to
drafts. When a sequence needs a cache block and none is left, the sequence that ranks last releases everything and waits again
at the place its arrival gives it (preemption by recomputation: it is prefilled again with all its known tokens).

This module decides on token counts and slots. It fills no array of a step (`batch`) and reads no result (`output`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from thalweg.config import SchedulerConfig
from thalweg.engine.control.adapters import AdapterSlots
from thalweg.engine.control.cache.prefix import Node
from thalweg.engine.control.cache.tables import KVCache
from thalweg.engine.control.invariant import ensure
from thalweg.engine.control.pace import Pace
from thalweg.engine.control.request import Request
from thalweg.engine.control.slots import WAITS, Slots
from thalweg.engine.control.speculation.drafter import AcceptanceCounters, Draft
from thalweg.engine.control.speculation.speculator import Speculator
from thalweg.engine.messages import SequenceFinished

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.engine.control.store.transfers import Transfers

SHARE_FROM = 64
"""A request waits for a prefix that a running one is computing now if that saves at least this many tokens."""

PASS_AT_MOST = 64
"""Waiting requests that others may overtake in one step: bounds the search."""

_rank = attrgetter("rank")


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `take` tokens of a sequence that has more than one to compute."""

    slot: int
    take: int
    cached: int = -1
    """For a sequence that enters with this step: how many of its tokens came from the prefix cache."""


@dataclass(slots=True)
class Schedule:
    """One step's work, in slots: sequences that decode one token, then chunks, then sequences with drafts to verify."""

    decode: NDArray[np.int32]
    chunks: list[Chunk]
    entered: list[Request]
    drafted: list[Draft]
    streams: int = 0
    """With a drafter: sequences past their prompt, in the step or not."""
    proposes: int = 0
    """Drafts of a sequence that the step proposes for a later one. 0: none."""
    rationed: bool = True
    """Do the prompts of this step delay a stream?"""
    width: int = 0
    """Drafts that a sequence might have."""


@dataclass(slots=True)
class Counters:
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    prompt_cached: int = 0
    prompt_stored: int = 0
    drafts: AcceptanceCounters = field(default_factory=AcceptanceCounters)


class Scheduler:
    def __init__(
        self, config: SchedulerConfig, slots: Slots, kv: KVCache, share_from: int = SHARE_FROM,
        ready: Callable[[Request, int, int], int] | None = None, adapters: AdapterSlots | None = None,
    ) -> None:  # fmt: skip
        """ready: how many tokens of [begin, end) of a gated request may be computed now, from the first. adapters: None: no
        request has one."""
        self.waiting: list[Request] = []
        """In rank order."""
        self.running: list[Request] = []
        """In rank order."""
        self.impossible: list[tuple[Request, SequenceFinished]] = []
        """Requests that turned out to fit in no cache of this size, or have less cached than they ask for, and their ends. The
        caller ends them."""
        self.preempted: list[int] = []
        """Handles, one for each preemption. The caller clears it."""
        self.counters = Counters()
        self.transfers: Transfers | None = None
        """With a store: the traffic with it."""
        self._config = config
        self._slots = slots
        self._kv = kv
        self._share_from = share_from
        self._ready, self._adapters = ready, adapters
        self.speculator: Speculator | None = None
        """The planner of drafts. None: no drafts. The caller sets it before the first step."""
        self._computing: dict[bytes, Request] = {}
        self._order: NDArray[np.int32] | None = None
        self.pace = Pace(config.max_prefill_slowdown)
        self._since = 0
        """Steps since the last one in which a prompt started, with it."""
        self._prefilling = 0  # an upper bound on running sequences with more than one token to compute

    # ------------------------------------------------------------------ comings and goings

    def add(self, request: Request) -> None:
        insort(self.waiting, request, key=_rank)

    def remove(self, request: Request) -> None:
        """The request has ended, or is to end: release its slot and blocks, or its place in the queue."""
        if self.transfers is not None:
            self.transfers.forget(request)
        if request.slot:
            if self.speculator is not None:
                self.speculator.finish(request.slot)
            self._stop(request)
        else:
            del self.waiting[bisect_left(self.waiting, request.rank, key=_rank)]

    def _stop(self, request: Request) -> None:
        del self.running[bisect_left(self.running, request.rank, key=_rank)]
        self._order = None
        self._kv.release(request.slot, request)
        self._slots.leave(request)
        self._disclaim(request)

    def _disclaim(self, request: Request) -> None:
        for key in request.claims:
            del self._computing[key]
        request.claims.clear()

    def _preempt(self, request: Request) -> None:
        self._stop(request)
        request.scored_scheduled, request.tried_store = request.scored, False
        self.add(request)
        self.counters.preemptions += 1
        self.preempted.append(request.handle)

    def release_claims(self, request: Request, keys: list[bytes]) -> None:
        """These blocks can be found now. Requests that waited for them no longer need to."""
        for key in keys:
            if key in request.claims:
                request.claims.discard(key)
                del self._computing[key]
        if not request.publishing:
            self._disclaim(request)

    def reset_prefix_cache(self) -> None:
        self._kv.reset()
        if self.transfers is not None:
            self.transfers.reset()
        for request in self.running:
            self._disclaim(request)

    # ------------------------------------------------------------------ a step

    def schedule(self, in_flight: int) -> Schedule | None:
        """The next step, or None if nothing can be scheduled before a step in flight (of `in_flight`) returns."""
        preempted = self.counters.preemptions
        budget = self._config.token_budget
        speculator, streams, proposes, width = self.speculator, 0, 0, 0
        if speculator is not None:
            streams = self._streams()
            width = speculator.choose(streams, self.order(), bool(self.waiting) or self._prefilling > 0)
            proposes = speculator.proposes
            speculator = speculator if streams and width else None
        decode = self._decodes(budget, in_flight, speculator)
        budget -= decode.size
        self._left = budget
        whole, rationed = False, self._has_streaming(decode)
        if rationed and budget and (self.waiting or self._prefilling) and not self._resuming():
            most, budget = budget, self.pace.allowance(budget)
            if not budget:
                budget, whole = self.pace.newcomers(most), True
        chunks: list[Chunk] = []
        if self._prefilling and budget and not whole:
            budget = max(0, budget - self._chunks(chunks, budget, in_flight))
        if self.counters.preemptions != preempted:
            # A victim must not be in the step: its blocks have new owners. (A chunk has none: only those after it can be.)
            decode = decode[self._slots.serial[decode] != 0]
        entered: list[Request] = []
        if self.waiting and budget and self.counters.preemptions == preempted and self._may_enter(bool(decode.size)):
            budget = max(0, budget - self._enter(chunks, entered, budget, in_flight, whole))
        if chunks and budget and not whole and self.counters.preemptions == preempted:
            self._top_up(chunks, budget)
        drafted: list[Draft] = []
        if speculator is not None and decode.size and not (chunks and self._kv.keeps_states):
            # With drafts, recurrent layers keep intermediate states and run twice over the step's tokens: no prompts there.
            left = self._config.token_budget - decode.size - sum(c.take for c in chunks)
            drafted = speculator.plan(decode, left, len(self.running), fill=not chunks)
            if drafted:
                decode = decode[~np.isin(decode, [d.slot for d in drafted])] if len(drafted) < decode.size else decode[:0]
        if proposes and self.speculator is not None:
            proposes = self.speculator.worth_proposing(decode, chunks, drafted)
        if proposes and self.speculator is not None:
            self.speculator.make_room(decode, chunks, drafted, len(self.running))
        elif self.speculator is not None:
            self.speculator.miss(decode, chunks)
        # A step with only drafts waits for drafts in flight, to run with them: otherwise each half of the sequences would
        # have separate steps.
        halved = drafted and in_flight and self._slots.proposed[self.order()].any()
        if not decode.size and not chunks and (halved or not drafted):
            return None
        self._since = 1 if entered else self._since + 1
        return Schedule(decode, chunks, entered, drafted, streams, proposes, rationed, width)

    def _has_streaming(self, decode: NDArray[np.int32]) -> bool:
        """Is any of these requests streamed? Requests answered at the end gain by the throughput of the batch: prompts in
        large steps."""
        requests = self._slots.requests
        return any(r is not None and r.streamed for r in map(requests.__getitem__, decode.tolist()))

    def _resuming(self) -> bool:
        """Does a stream that had begun wait for its sequence to be computed again (after a restart, or a preemption)? It
        stalls meanwhile, which is worse than being slow. One that waits for a slot computes nothing yet."""
        s = self._slots
        if self.waiting and self.waiting[0].is_resumed and s.available:
            return True
        return self._prefilling > 0 and any(r.is_resumed and s.length[r.slot] - s.scheduled[r.slot] > 1 for r in self.running)

    @property
    def decoding(self) -> bool:
        """Does any sequence decode?"""
        return len(self.running) > self._prefilling

    def in_prompt(self, request: Request) -> bool:
        """Is some of its prompt not in a launched step yet?"""
        return not request.slot or int(self._slots.scheduled[request.slot]) < request.prompt_len

    def order(self) -> NDArray[np.int32]:
        """Slots of the running sequences, in rank order."""
        if self._order is None:
            self._order = np.fromiter((r.slot for r in self.running), np.int32, len(self.running))
        return self._order

    def _decodes(self, budget: int, in_flight: int, speculator: Speculator | None) -> NDArray[np.int32]:
        """Slots with exactly one token to compute, each with room for it in the cache."""
        s, order = self._slots, self.order()
        scheduled, length = s.scheduled[order], s.length[order]
        ready = (length - scheduled == 1) & (length < s.limit[order])
        if in_flight:
            known = s.known[order] == length
            ready &= known if self._config.stages > 1 else ((s.flags[order] & WAITS) == 0) | known | s.hopes[order]
        if speculator is not None and in_flight:
            ready &= ~speculator.waits(order, ready)
        decode = order if ready.all() else order[ready]
        if self._config.stages > 1:  # the others are those of the steps in other stages
            budget = min(budget, -(-int((length - scheduled <= 1).sum()) // self._config.pipeline_depth))
        if decode.size > budget:
            decode = decode[:budget]
        tight = decode[s.scheduled[decode] >= s.capacity[decode]]
        if not tight.size:
            return decode
        stuck = [slot for slot in tight.tolist() if s.serial[slot] and not self._make_room(slot, 1, in_flight)]
        return decode[~np.isin(decode, stuck)] if stuck else decode

    def _streams(self) -> int:
        """Sequences past their prompt."""
        s, order = self._slots, self.order()
        return int((s.length[order] - s.scheduled[order] <= 1).sum())

    # ------------------------------------------------------------------ room, and chunks

    def _make_room(self, slot: int, tokens: int, in_flight: int) -> bool:
        """Make room in the cache for `tokens` more, by preempting the sequences that rank last. False if the sequence itself
        had to give way, or must wait for steps in flight."""
        request = self._slots.requests[slot]
        assert request is not None
        upto = int(self._slots.scheduled[slot]) + tokens
        while not self._kv.grow(slot, upto):
            last = self.running[-1]
            if last is not request:
                self._preempt(last)
            elif len(self.running) > 1:
                self._preempt(request)
                return False
            else:
                if not in_flight and not self._kv.withheld:
                    self.impossible.append(self._too_big(request, upto))
                return False
        return True

    def _too_big(self, request: Request, tokens: int) -> tuple[Request, SequenceFinished]:
        sizes = ", ".join(str(g.spec.block_tokens * (g.pool.total - 1)) for g in self._kv.groups)
        why = (
            f"the sequence has reached {tokens} tokens and alone fills the KV cache (room for {sizes} tokens): "
            "give the cache more blocks (--kv-cache-memory-bytes or --num-gpu-blocks-override), or ask for fewer tokens"
        )
        return request, SequenceFinished(request.handle, "error", error=why)

    def _chunks(self, chunks: list[Chunk], budget: int, in_flight: int) -> int:
        """Chunks of sequences in the middle of their prompt, shared fairly: a sequence gets no more than another with the
        same need, so a short prompt does not wait for a long one. Waiting requests count as one. Returns the tokens used."""
        s, order, taken = self._slots, self.order(), 0
        slots = order[s.length[order] - s.scheduled[order] > 1].tolist()
        self._prefilling = len(slots)
        rests = {slot: int(s.length[slot] - s.scheduled[slot]) for slot in slots}
        shares = _shares(rests, budget, len(self.waiting) > 0) if self._config.chunked_prefill else {}
        for slot in slots:
            start = int(s.scheduled[slot])
            most = shares.get(slot, budget - taken)
            if self._config.chunked_prefill:
                most = min(most, max(1, self._kv.room(slot) - start))
            take = self._chunk_size(start, rests[slot], most) if s.serial[slot] and most > 0 else 0
            take = self._take_ready(s.requests[slot], start, self._uncut(s.requests[slot], start, take, chunks))
            if take > 0 and self._make_room(slot, take, in_flight):
                chunks.append(Chunk(slot, take))
                taken += take
        return taken

    def _top_up(self, chunks: list[Chunk], budget: int) -> None:
        """Tokens that waiting requests did not use go to the chunks there are, where the cache has room as it is."""
        if not self._config.chunked_prefill:
            return
        s = self._slots
        for i, c in enumerate(chunks):
            start = int(s.scheduled[c.slot])
            rest = int(s.length[c.slot]) - start
            most = min(rest, c.take + budget, self._kv.room(c.slot) - start)
            more = self._chunk_size(start, rest, most) - c.take
            request = s.requests[c.slot]
            if request is not None and (request.gated or request.together):
                more = 0  # it ends inside no stretch, and before any unencoded item
            if more > 0 and self._kv.grow(c.slot, start + c.take + more):
                chunks[i] = Chunk(c.slot, c.take + more, c.cached)
                budget -= more

    def _chunk_size(self, start: int, rest: int, budget: int) -> int:
        """Tokens of the prompt from `start` on that fit this step; 0 if chunks are off and the whole does not. A long prompt
        leaves room for others: its chunks are no larger than the threshold that makes it long. And a chunk may end at the
        boundary that the cache prefers."""
        if not self._config.chunked_prefill:
            return rest if rest <= budget else 0
        threshold = self._config.long_prefill_threshold
        return self._kv.cut(start, min(rest, budget, threshold) if threshold else min(rest, budget))

    def _take_ready(self, request: Request | None, start: int, take: int) -> int:
        """The tokens <= `take` that may be computed now, of a chunk that ends inside no stretch."""
        if request is None or not request.gated or self._ready is None or take <= 0:
            return take
        end = start + self._ready(request, start, start + take)
        if end == start + take:
            return take
        inside = (first for first, last in request.together if first < end < last)
        return max(0, next(inside, end) - start)

    def _uncut(self, request: Request | None, start: int, take: int, chunks: list[Chunk]) -> int:
        """The tokens <= `take` of a chunk that ends inside no stretch, or all of one that it begins with, if the step has room
        for that; 0 if it has not."""
        for first, end in () if request is None else request.together:
            if first < start + take < end:
                if first > start:
                    return first - start
                return end - start if end - start <= self._left - sum(c.take for c in chunks) else 0
        return take

    # ------------------------------------------------------------------ entering

    def _may_enter(self, decodes: bool) -> bool:
        """May prompts start in this step? They always may where nothing decodes."""
        if decodes and self._since < self._config.prefill_interval:
            for request in self.waiting:
                request.held = "interval"
            return False
        return True

    def _enter(self, chunks: list[Chunk], entered: list[Request], budget: int, in_flight: int, whole: bool) -> int:
        """Admit waiting requests in rank order. The first without room ends the round. Some let others pass: requests that
        wait for a prefix, a store or a slot of adapters, a long prompt while enough long ones are in progress, and with
        `whole` any prompt that does not fit this step. Returns the tokens used."""
        given = budget
        s, config = self._slots, self._config
        threshold = config.long_prefill_threshold
        partial, long_partial = self._in_progress(chunks)
        limited = 0
        adapters = self._adapters
        if adapters is not None:
            adapters.begin_round()
        for request in self.waiting[: s.available + PASS_AT_MOST]:
            running = len(self.running)
            if not budget or not s.available or self._kv.is_crowded(running):
                request.held = "tokens" if not budget else "slots" if not s.available else "cache"
                return given - budget
            if 0 < request.most_a_step <= limited:
                request.held = "tokens"
                return given - budget
            if request.adapter and adapters is not None and not adapters.admits(request):
                request.held = "adapter"
                continue
            if request.waits_for in self._computing:
                request.held = "prefix"
                continue
            spare = config.watermark if running else 0.0
            if running and not self._kv.fits(request.demand, running, spare):
                request.held = "cache"
                return given - budget  # as when it last looked; looking costs a walk over its prompt
            nodes = self._kv.find(request)
            if self._worth_waiting(request, len(nodes)):
                request.held = "prefix"
                continue
            if self.transfers is not None and not request.tried_store:
                if self.transfers.coming(request, len(nodes), running):
                    request.held = "store"
                    continue
                nodes = self._kv.find(request)
            cached = len(nodes) * self._kv.unit
            if cached < request.least_cached * request.prompt_len and not (request.started or request.is_resumed):
                self.impossible.append((request, SequenceFinished(request.handle, "cache_threshold")))
                continue
            rest = request.tokens.size - cached
            take = self._chunk_size(cached, rest, budget)
            if whole and take < rest:
                request.held = "tokens"
                continue
            if config.chunked_prefill and not running:
                take = self._kv.first_chunk(nodes, take)
            take = self._uncut(request, cached, take, chunks)
            if request.gated and take and (allowed := self._take_ready(request, cached, take)) < take:
                if not allowed or not config.chunked_prefill:
                    request.held = "encoder"
                    continue
                take = allowed
            upto = request.tokens.size if config.whole_prompts else cached + take
            request.demand = self._kv.demand(nodes, upto, take)
            if not take or not self._kv.fits(request.demand, running, spare):
                request.held = "cache" if take else "tokens"
                if not running and not in_flight and not self._kv.withheld:
                    self.impossible.append(self._too_big(request, request.tokens.size))
                return given - budget
            long = 0 < threshold < request.tokens.size
            if take < rest:
                if long and long_partial >= config.max_long_partial_prefills:
                    request.held = "partial"
                    continue
                if partial >= config.max_partial_prefills:
                    request.held = "partial"
                    return given - budget
            if take < rest:
                partial, long_partial = partial + 1, long_partial + long
            self._admit(request, nodes, take)
            limited += request.most_a_step > 0
            chunks.append(Chunk(request.slot, take, cached))
            entered.append(request)
            budget -= take
        return given - budget

    def _in_progress(self, chunks: list[Chunk]) -> tuple[int, int]:
        """How many running prompts this step leaves unfinished, and how many of those are long."""
        if not self._prefilling:
            return 0, 0
        s, threshold = self._slots, self._config.long_prefill_threshold
        takes = {c.slot: c.take for c in chunks}
        partial = long_partial = 0
        for slot in self.order().tolist():
            rest = int(s.length[slot] - s.scheduled[slot])
            if rest > 1 and takes.get(slot, 0) < rest:
                partial += 1
                long_partial += 0 < threshold < int(s.length[slot])
        return partial, long_partial

    def _worth_waiting(self, request: Request, found: int) -> bool:
        """Are the next blocks of this prompt being computed right now? Then it enters later, and finds them.

        The wait ends: it is for a running sequence, which either publishes these blocks or, when it stops for any reason,
        releases its claims; and a waiting request holds nothing that a running one could need."""
        if not self._computing or not self._kv.caching or not request.read_cache:
            return False
        most = (request.tokens.size - 1) // self._kv.unit
        keys, end = self._kv.keys(request), found
        while end < most and keys[end] in self._computing:
            end += 1
        if end == found or (end - found) * self._kv.unit < self._share_from:
            return False
        request.waits_for = keys[end - 1]
        return True

    def _admit(self, request: Request, nodes: list[Node], take: int) -> None:
        kv = self._kv
        cached = len(nodes) * kv.unit
        if self.transfers is not None:
            self.transfers.forget(request)
        self.waiting.remove(request)
        request.demand = []
        insort(self.running, request, key=_rank)
        self._order = None
        slot = self._slots.enter(request, cached)
        kv.attach(slot, request, nodes)
        ensure(kv.grow(slot, cached + take), "a request was admitted without room for its first chunk")
        if kv.caching:
            for key in kv.keys(request)[len(nodes) :]:
                if self._computing.setdefault(key, request) is request:
                    request.claims.add(key)
            if request.read_cache:
                self.counters.prefix_queries += request.tokens.size
                self.counters.prefix_hits += cached
        if not request.started:
            self.counters.prompt_tokens += request.prompt_len
            self.counters.prompt_cached += min(cached, request.prompt_len)
            self.counters.prompt_stored += min(request.stored, cached, request.prompt_len)
        self._prefilling += 1

    def check(self) -> None:
        for name, queue in (("waiting", self.waiting), ("running", self.running)):
            ranks = [r.rank for r in queue]
            ensure(all(a < b for a, b in pairwise(ranks)), f"{name}: not in rank order")
        ensure(all(r.slot and self._slots.requests[r.slot] is r for r in self.running), "running: a request without its slot")
        ensure(not any(r.slot for r in self.waiting), "waiting: a request with a slot")
        if self._adapters is not None:
            self._adapters.check(self.running)
        claims = {k: r for r in self.running for k in r.claims}
        ensure(claims == self._computing, "claims on blocks being computed do not match the running requests")


def _shares(rests: dict[int, int], budget: int, reserve: bool) -> dict[int, int]:
    """Max-min fair shares of the budget: small demands are met in full, the others get equal shares. reserve: leave a share
    for one more demand of unlimited size."""
    left, claimants = budget, len(rests) + reserve
    shares = {}
    for slot, rest in sorted(rests.items(), key=lambda item: item[1]):
        shares[slot] = min(rest, max(1, left // claimants)) if left else 0
        left -= shares[slot]
        claimants -= 1
    return shares
