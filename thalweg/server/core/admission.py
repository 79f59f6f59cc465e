"""Who may go to the engine, and when: a bounded queue, and turns by tenant.

A request is charged before it costs anything. It is charged with its place when its body has arrived (until then it
costs the bytes of that, which are bounded elsewhere), and with its prompts and tokens when those are known. A full
queue refuses at once (429 with Retry-After) rather than let everybody wait longer. The engine is given little more
than it can run at once (`window`). The rest waits here, and the next is taken from each tenant in turn. So a hundred
requests of one tenant delay another's by one turn, not by a hundred. Nor can one tenant fill the queue: it may hold
SHARE times what it leaves free (the dynamic thresholds of Choudhury and Hahne, 1998).
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from thalweg.server.core.drain import Drain
from thalweg.server.errors import ApiError

SHARE = 8
FEW = 4
"""Choices that usually stay together: their prompt is then computed once."""
LONGEST_WAIT = 120
"""Retry-After promises no more than this many seconds."""


@dataclass(order=True, slots=True)
class _Waiter:
    priority: int
    number: int
    cost: int = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)


class Ticket:
    """A request's place in the queue: first one place, then (`charge`) one per prompt, given back as prompts start."""

    def __init__(self, admission: Admission, tenant: str) -> None:
        self._admission, self.tenant = admission, tenant
        self.places, self.tokens = 1, 0
        admission.hold(tenant, 1, 0)

    def charge(self, prompts: int, tokens: int) -> None:
        """The request turned out to be this big. ApiError 429 if others wait and it does not fit behind them."""
        a = self._admission
        if a.places > self.places and not a.fits(self.tenant, prompts - self.places, tokens - self.tokens):
            raise a.busy()  # alone it would fit, however big
        a.hold(self.tenant, prompts - self.places, tokens - self.tokens)
        self.places, self.tokens = prompts, tokens

    def started(self, prompts: int, tokens: int) -> None:
        self._give_back(min(prompts, self.places), min(tokens, self.tokens))

    def close(self) -> None:
        self._give_back(self.places, self.tokens)

    def _give_back(self, places: int, tokens: int) -> None:
        self.places -= places
        self.tokens -= tokens
        self._admission.hold(self.tenant, -places, -tokens)


class Admission:
    """window: sequences at the engine. max_requests, max_tokens: prompts that may wait beyond it, and their tokens."""

    def __init__(self, window: int, max_requests: int, max_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.window, self.max_requests, self.max_tokens = window, max_requests, max_tokens
        self.running = 0
        """Sequences at the engine."""
        self.places, self.tokens = 0, 0
        """Prompts that have not started, and their tokens."""
        self._held: dict[str, tuple[int, int]] = {}
        """Places and tokens of each tenant that holds any."""
        self.refused = 0
        self._drain = Drain(window, clock)
        self._queues: OrderedDict[str, list[_Waiter]] = OrderedDict()
        self._numbers = itertools.count()
        self._closed: ApiError | None = None

    @property
    def waiting(self) -> int:
        """Prompts that wait for a turn."""
        return sum(map(len, self._queues.values()))

    @property
    def limit(self) -> int:
        """Places there are now: the queue's, and those that could start at once."""
        return self.max_requests + max(0, self.window - self.running)

    @property
    def most_together(self) -> int:
        """Choices of one prompt that take one turn. Nobody passes a turn that does not fit yet, so its cost is what others wait
        for: it is kept to a sixteenth of the window, or to the few that people ask for."""
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
    ) -> AsyncIterator[None]:
        """Waits until a prompt of `ticket`, or some choices of it, may run. While the block runs, they count as
        running. sequences: at most `most_together`. prompts: 0 for choices of a prompt that has started."""
        if self._closed is not None:
            raise self._closed
        cost = min(sequences, self.most_together)
        if self._queues or self.running + cost > self.window:
            await self._wait(ticket.tenant, cost, priority)
        else:
            self.running += cost
        ticket.started(prompts, tokens)
        began = self._drain.started()
        try:
            yield
        finally:
            self._drain.ended(began, cost)
            self.running -= cost
            self._call()

    def close(self, error: ApiError) -> None:
        """Nobody gets a turn any more: `error` for whoever waits or comes."""
        self._closed = error
        for queue in self._queues.values():
            for waiter in queue:
                if not waiter.turn.done():
                    waiter.turn.set_exception(error)
        self._queues.clear()

    async def _wait(self, tenant: str, cost: int, priority: int) -> None:
        waiter = _Waiter(priority, next(self._numbers), cost, asyncio.get_running_loop().create_future())
        queue = self._queues.setdefault(tenant, [])
        bisect.insort(queue, waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():  # called and cancelled in the same moment
                self.running -= cost
            elif waiter in queue:
                queue.remove(waiter)
                if not queue and self._queues.get(tenant) is queue:
                    del self._queues[tenant]
            self._call()
            raise

    def _call(self) -> None:
        """Let in whoever fits now: the most urgent first, among equals each tenant in turn."""
        while self._queues:
            tenant = min(self._queues, key=lambda t: self._queues[t][0].priority)  # the first in turn, of equals
            queue = self._queues[tenant]
            if self.running + queue[0].cost > self.window:
                return
            waiter = queue.pop(0)
            if queue:
                self._queues.move_to_end(tenant)
            else:
                del self._queues[tenant]
            if not waiter.turn.cancelled():
                self.running += waiter.cost
                waiter.turn.set_result(None)


def _fits(more: int, free: int, held: int) -> bool:
    return more <= 0 or (more <= free and held <= SHARE * free)
