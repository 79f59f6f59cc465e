"""The state of running sequences, one array element per slot, so that a step over hundreds of sequences is a few array
operations.

A sequence has two notions of progress. *Scheduled* counts launched steps: `scheduled` tokens will be in the cache and
`length` tokens will exist when everything launched has run. *Returned* counts steps read back: `returned` tokens are in the
cache and `known` token ids are in `tokens`. Always returned <= scheduled <= length and known <= length <= limit.

With drafts progress is a range. While `proposed` drafts are in flight, `scheduled` counts them all. When they return it goes
back to the accepted tokens: `returned`. The cache may then hold keys of rejected tokens, but only beyond `returned`, where
the sequence will write again. Meanwhile scheduled == length: nothing more is scheduled for it.

A sequence that is ready to decode has exactly one token to compute: length - scheduled == 1. During prefill it has more. One
with scheduled == length has nothing left to schedule: it is at its limit, and its last tokens are in flight.

`serial` names one stay of one sequence in a slot: the results of a step belong to the sequence in the slot at launch. They
are discarded if the serial has changed since. A sequence with a rejected last token goes back by that token and gets another
serial (`rewind`), so steps launched after it are discarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from thalweg.engine.control.invariant import ensure
from thalweg.engine.control.request import Request
from thalweg.engine.messages import TokenSampling
from thalweg.hal.step import SamplingArrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.engine.control.parts.builder import Builder

    I32 = NDArray[np.int32]
    I64 = NDArray[np.int64]

STOP_WIDTH = 8
"""Stop ids compared as an array; a sequence with more is looked up in a set."""

RANDOM, TRUNCATE, MANY_STOPS, LOOKBACK, UNDRAFTED, WAITS, PARTS = (1 << i for i in range(7))
"""Bits of `Slots.flags`: features of a sequence beyond greedy tokens. LOOKBACK: the step reads its history. UNDRAFTED: it has
no drafts, by request or because its logits change in a way that is not computed for them. WAITS: the change depends on the
token before, so the sequence is in no step until that has returned, unless it hopes. PARTS: the first of the bits that parts
of a step have, one each."""


class Slots:
    def __init__(self, max_seqs: int, max_len: int, builders: Sequence[Builder] = ()) -> None:
        """builders: of the parts that a sequence may ask for."""
        n = max_seqs + 1  # slot 0 is scratch
        self._builders = builders
        self.count = max_seqs
        self.serial: I64 = np.zeros(n, np.int64)
        self.handle: I64 = np.zeros(n, np.int64)
        self.tokens: I32 = np.zeros((n, max_len), np.int32)
        self.known: I32 = np.zeros(n, np.int32)
        self.returned: I32 = np.zeros(n, np.int32)
        self.scheduled: I32 = np.zeros(n, np.int32)
        self.length: I32 = np.zeros(n, np.int32)
        self.proposed: I32 = np.zeros(n, np.int32)
        """Drafts in flight."""
        self.prompt_len: I32 = np.zeros(n, np.int32)
        """Tokens of its prompt."""
        self.limit: I32 = np.zeros(n, np.int32)
        self.stop_from: I32 = np.zeros(n, np.int32)
        """Stop ids count once `known` is at least this: the prompt and min_tokens."""
        self.capacity: I32 = np.zeros(n, np.int32)
        """Tokens its blocks have room for."""
        self.publish_at: I32 = np.zeros(n, np.int32)
        """When `returned` reaches this, the KV cache has something to do: a block to publish or to drop."""
        self.stops: I32 = np.full((n, STOP_WIDTH), -1, np.int32)
        self.flags: I64 = np.zeros(n, np.int64)
        self.hopes: NDArray[np.bool_] = np.zeros(n, np.bool_)
        """Of sequences that wait: the next token may be sampled before the part is known, and resampled if that forbids it."""
        self.may_hope = False
        """Can the cache and the results of a token be rolled back by one token?"""
        self.logprobs: I32 = np.full(n, -1, np.int32)
        self.sampling = SamplingArrays.greedy(n)
        self.requests: list[Request | None] = [None] * n
        self._free = list(range(max_seqs, 0, -1))
        self._serials = 0

    @property
    def available(self) -> int:
        return len(self._free)

    def enter(self, request: Request, cached: int) -> int:
        """Give the request a slot; `cached` of its tokens are in the cache already."""
        slot = self._free.pop()
        size = request.tokens.size
        self._serials += 1
        self.serial[slot] = self._serials
        self.handle[slot] = request.handle
        self.tokens[slot, :size] = request.tokens
        self.known[slot] = self.length[slot] = size
        self.returned[slot] = self.scheduled[slot] = cached
        self.proposed[slot] = 0
        self.prompt_len[slot], self.limit[slot] = request.prompt_len, request.limit
        sampling = request.sampling
        # A grammar allows the end at any valid point: the mask bans it until min_tokens, where there is another way.
        least = 0 if sampling.grammar is not None else sampling.min_tokens
        self.stop_from[slot] = min(request.prompt_len + least, request.limit + 1)
        self.logprobs[slot] = sampling.logprobs
        self.flags[slot] = flags_of(sampling)
        self.stops[slot] = -1
        stops = (*sampling.eos_ids, *sampling.stop_ids)
        if len(stops) <= STOP_WIDTH:
            self.stops[slot, : len(stops)] = stops
        self._fill_sampling(slot, request)
        self.requests[slot] = request
        request.slot = slot
        # Greedy: the best of all tokens is the best of the allowed ones, if allowed. Truncation comes after a mask, so it
        # would differ without one.
        self.hopes[slot] = self.may_hope and not self.flags[slot] & TRUNCATE
        for builder in self._builders:
            if builder.applies(request):
                self.hopes[slot] &= not builder.waits(sampling) or builder.hopes(sampling)
                self.flags[slot] |= builder.flags | WAITS * builder.waits(sampling)
                builder.enter(slot, request)
        return slot

    def _fill_sampling(self, slot: int, request: Request) -> None:
        to, p = self.sampling, request.sampling
        to.temperature[slot], to.top_k[slot], to.top_p[slot], to.min_p[slot] = p.temperature, p.top_k, p.top_p, p.min_p
        to.seed[slot] = np.array([p.seed & (2**64 - 1)], np.uint64).view(np.int32)  # low word, high word

    def leave(self, request: Request) -> None:
        """Take the request out, with the tokens known by now. Results in flight for it will find another serial."""
        slot = request.slot
        request.tokens = self.tokens[slot, : self.known[slot]].copy()
        for builder in self._builders:
            if self.flags[slot] & builder.flag:
                builder.leave(slot)
        request.slot = 0
        self.serial[slot] = 0
        self.requests[slot] = None
        self._free.append(slot)

    def rewind(self, slot: int) -> None:
        """The token that just returned is forbidden, and was not recorded. Later launches are void."""
        ensure(self.returned[slot] == self.known[slot] - 1, f"slot {slot}: more than one token to take back")
        self._serials += 1
        self.serial[slot] = self._serials
        self.scheduled[slot], self.length[slot] = self.returned[slot], self.known[slot]

    def gather(self, slots: I32) -> SamplingArrays:
        """The sampling parameters of these slots, in this order."""
        return SamplingArrays(**{f.name: getattr(self.sampling, f.name)[slots] for f in fields(SamplingArrays)})

    def check(self) -> None:
        used = [s for s in range(1, self.count + 1) if self.requests[s] is not None]
        ensure(len(set(self._free)) == len(self._free), "a slot is free twice")
        ensure(sorted([*used, *self._free]) == list(range(1, self.count + 1)), "slots used + free != all")
        for s in used:
            ensure(self.requests[s].slot == s and self.serial[s] > 0, f"slot {s}: its request is elsewhere")  # type: ignore[union-attr]
            r, c, n, k, m = (int(a[s]) for a in (self.returned, self.scheduled, self.length, self.known, self.limit))
            ensure(r <= c <= n <= m and k <= n and c <= self.capacity[s], f"slot {s}: {r=} {c=} {n=} {k=} {m=}")
            ensure(not self.proposed[s] or k < c == n, f"slot {s}: drafts are in flight, but {c=} {n=} {k=}")


def flags_of(p: TokenSampling) -> int:
    """Bits of a request's parameters. Parts add theirs."""
    stops = len(p.eos_ids) + len(p.stop_ids)
    return (
        RANDOM * (p.temperature > 0)
        | TRUNCATE * (p.top_k > 0 or p.top_p < 1 or p.min_p > 0)
        | MANY_STOPS * (stops > STOP_WIDTH)
        | UNDRAFTED * (not p.drafts)
    )
