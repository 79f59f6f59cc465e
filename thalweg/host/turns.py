"""Places that several share, given in turn: nobody waits longer because somebody else asks for more. For one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


class FairSemaphore:
    """`places` that tenants share. The next free place goes to each tenant that waits in turn, and of a tenant to the one that
    has waited longest. Nobody is passed because a smaller one behind would fit."""

    def __init__(self, places: int = 1, spare: bool = False) -> None:
        """spare: a tenant that holds none gets what it asks for at once, even if none is free. So what others do with their
        places delays nobody, and there are up to one more for each tenant."""
        self._places, self._spare, self._used = places, spare, 0
        self._held: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()

    @property
    def idle(self) -> bool:
        """Nobody holds a place, and nobody waits."""
        return not self._used and not self._queues

    async def take(self, tenant: str, cost: int = 1) -> int:
        """Wait for `cost` places, all of them at most. Returns how many were taken, for `give`."""
        cost = min(cost, self._places)
        if self._fits(tenant, cost) and (not self._queues or self._is_spare(tenant)):
            self._hold(tenant, cost)
            return cost
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (cost, called)
        self._queues.setdefault(tenant, deque()).append(waiter)
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():  # called and cancelled in the same moment
                self.give(tenant, cost)
            else:
                self._forget(tenant, waiter)
                self._call()
            raise
        return cost

    def give(self, tenant: str, cost: int = 1) -> None:
        """Give places back."""
        self._hold(tenant, -cost)
        self._call()

    @asynccontextmanager
    async def turn(self, tenant: str, cost: int = 1) -> AsyncIterator[None]:
        """`take`, and `give` when the block ends."""
        taken = await self.take(tenant, cost)
        try:
            yield
        finally:
            self.give(tenant, taken)

    async def run(self, tenant: str, executor: Executor, work: Callable[[], T]) -> T:
        """What `work` returns, called on a thread. The place is held until the call has returned, even if nobody waits for it
        any more: a thread cannot be cancelled."""
        taken = await self.take(tenant)
        return await run_held(executor, work, lambda: self.give(tenant, taken))

    def _is_spare(self, tenant: str) -> bool:
        return self._spare and not self._held[tenant]

    def _fits(self, tenant: str, cost: int) -> bool:
        return self._used + cost <= self._places or self._is_spare(tenant)

    def _hold(self, tenant: str, cost: int) -> None:
        self._used += cost
        self._held[tenant] += cost
        if not self._held[tenant]:
            del self._held[tenant]

    def _forget(self, tenant: str, waiter: tuple[int, asyncio.Future[None]]) -> None:
        queue = self._queues.get(tenant)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._queues[tenant]

    def _call(self) -> None:
        """Give free places to whoever is next."""
        while self._queues:
            tenant = next((t for t in self._queues if self._is_spare(t)), None) or next(iter(self._queues))
            queue = self._queues[tenant]
            cost, called = queue[0]
            if not called.done() and not self._fits(tenant, cost):
                return
            queue.popleft()
            if queue:
                self._queues.move_to_end(tenant)
            else:
                del self._queues[tenant]
            if not called.done():
                self._hold(tenant, cost)
                called.set_result(None)


async def run_held(executor: Executor, work: Callable[[], T], release: Callable[[], None]) -> T:
    """What `work` returns, called on a thread. `release` is called when it has returned, also if nobody waits any more."""
    try:
        done = asyncio.get_running_loop().run_in_executor(executor, work)
    except BaseException:
        release()
        raise
    done.add_done_callback(lambda _: release())
    done.add_done_callback(_consume)
    return await asyncio.shield(done)


def _consume(done: asyncio.Future[T]) -> None:
    """Nobody may be left to see how it ended."""
    if not done.cancelled():
        done.exception()
