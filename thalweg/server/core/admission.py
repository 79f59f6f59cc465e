"""Admission of requests to the engine: a bounded queue, and turns by tenant.

A request is charged before it costs anything. It is charged with its place when its body has arrived (until then it costs the
body's bytes, which are bounded elsewhere), and with its prompts and tokens when they are known. A full queue refuses at once
(429 with Retry-After) and keeps waits short. The engine gets little more than it can run at once (`window`). The rest waits
here. The next request comes from the tenant with the fewest sequences at the engine, and from equal tenants in turn. A hundred
requests of one tenant delay another's by one turn, not by a hundred. Where long answers free no turn, `seats` decides which
sequences make room. A stream without a reader gives its place to others. One tenant cannot fill the queue: it may hold SHARE
times the places left free (the dynamic thresholds of Choudhury and Hahne, 1998).
"""

from __future__ import annotations

import asyncio
import bisect
import heapq
import itertools
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from operator import attrgetter

from thalweg.server.core.drain import Drain
from thalweg.server.core.seats import PATIENCE, AdmissionSeat, choose_victims
from thalweg.server.errors import ApiError

SHARE = 8
FEW = 4
"""Choices that usually stay together: their prompt is then computed once."""
LONGEST_WAIT = 120
"""Retry-After promises no more than this many seconds."""
LOOK_SECONDS = 0.05
"""Seconds between looks for too long waits, while a request waits."""
MOST_TAKERS = 8
"""Most tenants a look makes room for: it stays short however many wait."""


class Ticket:
    """A request's place in the queue: first one place, then (`charge`) one per prompt, given back as prompts start. Each
    suspended part has a place again."""

    def __init__(self, admission: Admission, tenant: str) -> None:
        self._admission, self.tenant = admission, tenant
        self.places, self.tokens = 1, 0
        admission.hold(tenant, 1, 0)

    def charge(self, prompts: int, tokens: int) -> None:
        """The request turned out to be this big. ApiError 429 if others wait and it does not fit behind them."""
        a = self._admission
        if a.places > self.places and not a.fits(self.tenant, prompts - self.places, tokens - self.tokens):
            raise a.busy()  # without other requests it would fit, however big
        a.hold(self.tenant, prompts - self.places, tokens - self.tokens)
        self.places, self.tokens = prompts, tokens

    def start(self, prompts: int, tokens: int) -> None:
        self._give_back(min(prompts, self.places), min(tokens, self.tokens))

    def suspend(self) -> None:
        """One more part waits again."""
        self._give_back(-1, 0)

    def resume(self) -> None:
        """A part that was suspended goes on, or has ended."""
        self._give_back(min(1, self.places), 0)

    def close(self) -> None:
        self._give_back(self.places, self.tokens)

    def _give_back(self, places: int, tokens: int) -> None:
        self.places -= places
        self.tokens -= tokens
        self._admission.hold(self.tenant, -places, -tokens)


class Admission:
    """window: sequences at the engine. max_requests, max_tokens: prompts that may wait beyond it, and their tokens. slots:
    sequences that run at once there (None: `window`). crowded: do sequences wait there although slots are free, as where the
    cache is full?"""

    def __init__(
        self, window: int, max_requests: int, max_tokens: int, slots: int | None = None,
        crowded: Callable[[], bool] = lambda: False, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.window, self.max_requests, self.max_tokens = window, max_requests, max_tokens
        self.slots, self._crowded = window if slots is None else slots, crowded
        self.running = 0
        """Sequences at the engine."""
        self.places, self.tokens = 0, 0
        """Prompts that have not started, and their tokens."""
        self._held: dict[str, tuple[int, int]] = {}
        """Places and tokens of each tenant that holds any."""
        self.refused = 0
        self.behind = 0
        """Prompts and choices that have not asked for a turn yet, because others of their request come first."""
        self._clock = clock
        self._drain = Drain(window, clock)
        self._seats: dict[AdmissionSeat, None] = {}
        """Held seats, the oldest grant first."""
        self._at: dict[str, int] = {}
        """Sequences at the engine, of each tenant that has any."""
        self._queues: OrderedDict[str, list[AdmissionSeat]] = OrderedDict()
        """Seats that wait, each tenant's in order of rank."""
        self._hungry: set[AdmissionSeat] = set()
        """Seats for which others made room, and which may not run yet."""
        self._numbers = itertools.count()
        self._looking: asyncio.TimerHandle | None = None
        self._closed: ApiError | None = None

    def resize(self, window: int, max_requests: int, slots: int) -> None:
        """As the arguments of the constructor: the number of engines has changed."""
        self.window, self.max_requests, self.slots = window, max_requests, slots
        self._drain.window = window
        self._call()

    @property
    def waiting(self) -> int:
        """Prompts that wait for a turn."""
        return sum(map(len, self._queues.values())) + self.behind

    @property
    def limit(self) -> int:
        """Places there are now: the queue's, and those that could start at once."""
        return self.max_requests + max(0, self.window - self.running)

    @property
    def most_together(self) -> int:
        """Choices of one prompt in one turn. No request passes a turn that does not fit yet, so others wait for its cost. It is
        limited to a sixteenth of the window, or to a usual small number."""
        return max(1, self.window // 16, min(FEW, self.window // 4))

    def look(self, tenant: str) -> None:
        """ApiError 429 if there is no place now, or no room for another token."""
        if not self.fits(tenant, 1, 1 if self.places else 0):
            raise self.busy()

    def enter(self, tenant: str) -> Ticket:
        """A place in the queue. ApiError as `look`."""
        self.look(tenant)
        return Ticket(self, tenant)

    def fits(self, tenant: str, places: int, tokens: int) -> bool:
        """May the tenant hold that many more?"""
        held_places, held_tokens = self._held.get(tenant, (0, 0))
        free_places, free_tokens = self.limit - self.places, self.max_tokens - self.tokens
        return _fits(places, free_places, held_places) and _fits(tokens, free_tokens, held_tokens)

    def hold(self, tenant: str, places: int, tokens: int) -> None:
        self.places += places
        self.tokens += tokens
        before = self._held.pop(tenant, (0, 0))
        after = (before[0] + places, before[1] + tokens)
        if after != (0, 0):
            self._held[tenant] = after

    def busy(self) -> ApiError:
        """The refusal, with the time the queue needs to empty as far as is known."""
        self.refused += 1
        seconds = max(1, min(LONGEST_WAIT, round(self._drain.seconds(self.places))))
        return ApiError("the server is busy; try again later", status=429, retry_after=seconds)

    @asynccontextmanager
    async def turn(
        self, ticket: Ticket, sequences: int, tokens: int, priority: int = 0, prompts: int = 1
    ) -> AsyncIterator[AdmissionSeat]:
        """Waits until a prompt of `ticket`, or some of its choices, may run. They count as running while the block runs, unless
        the seat is left or taken. sequences: at most `most_together`. prompts: 0 for choices of a prompt that has started."""
        if self._closed is not None:
            raise self._closed
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        seat = AdmissionSeat(
            ticket, min(sequences, self.most_together), priority, next(self._numbers), turn, self._rest, self._queue,
            prompts=prompts, tokens=tokens,
        )  # fmt: skip
        self._queue(seat)
        try:
            await turn
            self._drain.start()
            try:
                yield seat
            finally:
                now = self._clock()
                self._drain.end(now - seat.seconds_held(now), seat.cost)
        finally:
            self._end(seat)

    def close(self, error: ApiError) -> None:
        """Grant no more turns: `error` for waiting and new requests."""
        self._closed = error
        for queue in self._queues.values():
            for seat in queue:
                if not seat.turn.done():
                    seat.turn.set_exception(error)
        self._queues.clear()

    def look_around(self) -> None:
        """Make room for tenants that have waited too long, by the rules of `seats`. Called periodically while a request
        waits."""
        self._looking = None
        now = self._clock()
        for taker in self._impatient(now)[:MOST_TAKERS]:
            self._make_room(taker, now)
        self._call()

    # ------------------------------------------------------------------ seats

    def _impatient(self, now: float) -> list[AdmissionSeat]:
        """Of each tenant, the seat that has waited too long: at the engine for a slot, or here. The most urgent comes first,
        then the tenant with the fewest sequences."""
        first: dict[str, AdmissionSeat] = {}
        if len(self._at.keys() | self._queues.keys()) == 1 and not any(s.begun for q in self._queues.values() for s in q[:1]):
            return []
        for seat in self._seats:
            if not seat.runs and now - seat.since >= PATIENCE:
                first.setdefault(seat.tenant, seat)
        for tenant, queue in self._queues.items():
            if now - queue[0].since >= PATIENCE:
                first.setdefault(tenant, queue[0])
        return sorted(first.values(), key=lambda seat: (seat.priority, self._at.get(seat.tenant, 0)))

    def _make_room(self, taker: AdmissionSeat, now: float) -> None:
        for seat in choose_victims(self._seats, taker, self.slots, self._crowded(), now) or ():
            assert seat.holder is not None, "only those that can be suspended are chosen"
            if not seat.holder.suspend():  # the engine recovers from a crash
                return
            self._free(seat)
            self._queue(seat, call=False)
        if not taker.held and not taker.turn.cancelled() and self.running + taker.cost <= self.slots:
            self._dequeue(taker)
            self._grant(taker)
            self._hungry.add(taker)

    def _limit(self) -> int:
        """Sequences that may be at the engine now. Limited to the engine's slots until the seats with reserved room have begun,
        so that no other passes them."""
        self._hungry = {seat for seat in self._hungry if seat.held and not (seat.holder is not None and seat.runs)}
        return self.slots if self._hungry else self.window

    def _queue(self, seat: AdmissionSeat, call: bool = True) -> None:
        """The seat is wanted, for the first time or again."""
        if self._closed is not None:
            return
        seat.since = self._clock()
        bisect.insort(self._queues.setdefault(seat.tenant, []), seat, key=attrgetter("rank"))
        if call:
            self._call()

    def _dequeue(self, seat: AdmissionSeat) -> None:
        queue = self._queues.get(seat.tenant, [])
        if seat in queue:
            queue.remove(seat)
            if not queue:
                del self._queues[seat.tenant]

    def _grant(self, seat: AdmissionSeat) -> None:
        self.running += seat.cost
        self._at[seat.tenant] = self._at.get(seat.tenant, 0) + seat.cost
        self._seats[seat] = None
        seat.held, seat.since = True, self._clock()
        if seat.begun:
            seat.ticket.resume()
            assert seat.holder is not None, "only those that can be resumed are suspended"
            seat.holder.resume()
        else:
            seat.begun = True
            seat.ticket.start(seat.prompts, seat.tokens)  # not when its task runs: until then it would count twice
            seat.turn.set_result(None)

    def _free(self, seat: AdmissionSeat) -> None:
        """The seat is no longer held. Its request goes on later."""
        self._give_up(seat)
        seat.ticket.suspend()

    def _give_up(self, seat: AdmissionSeat) -> None:
        del self._seats[seat]
        seat.before, seat.held = seat.seconds_held(self._clock()), False
        self.running -= seat.cost
        self._at[seat.tenant] -= seat.cost
        if not self._at[seat.tenant]:
            del self._at[seat.tenant]

    def _rest(self, seat: AdmissionSeat) -> None:
        """The seat's output has no reader, and its request was suspended."""
        self._free(seat)
        self._call()

    def _end(self, seat: AdmissionSeat) -> None:
        if seat.held:
            self._give_up(seat)
        else:
            self._dequeue(seat)
            if seat.begun:
                seat.ticket.resume()
        self._call()

    def _call(self) -> None:
        """Admit every seat that fits now: the most urgent first, then the tenant with the fewest sequences at the engine, then
        each tenant in turn."""
        limit = self._limit()
        if self._queues and self.running < limit:
            self._let_in(limit)
        if self._looking is None and (self._queues or self.running > self.slots):
            self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self.look_around)

    def _let_in(self, limit: int) -> None:
        places = itertools.count()
        heads = [(q[0].priority, self._at.get(t, 0), next(places), t) for t, q in self._queues.items()]
        heapq.heapify(heads)
        while heads:
            tenant = heapq.heappop(heads)[-1]
            queue = self._queues[tenant]
            if self.running + queue[0].cost > limit:
                break
            seat = queue.pop(0)
            if not seat.turn.cancelled():
                self._grant(seat)
            if queue:
                self._queues.move_to_end(tenant)
                heapq.heappush(heads, (queue[0].priority, self._at.get(tenant, 0), next(places), tenant))
            else:
                del self._queues[tenant]


def _fits(more: int, free: int, held: int) -> bool:
    return more <= 0 or (more <= free and held <= SHARE * free)
