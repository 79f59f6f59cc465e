"""A semaphore that tenants share fairly: none waits longer because another asks for more. For one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class FairSemaphore:
    """`places` shared by tenants. Free places go to the waiting tenants in turn, and within a tenant to the longest wait. A
    waiter is never passed by a smaller one behind it."""

    def __init__(self, places: int = 1, spare: bool = False) -> None:
        """spare: a tenant without a place is served at once, even if none is free. Other tenants then delay it by nothing, and
        up to one more place per tenant is in use."""
        self._places, self._spare, self._used = places, spare, 0
        self._held: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()

    @property
    def idle(self) -> bool:
        """No tenant holds a place or waits."""
        return not self._used and not self._queues

    async def take(self, tenant: str, cost: int = 1) -> int:
        """Wait for `cost` places, at most `places`. Returns the number taken, for `give`."""
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
        """The result of `work`, called on a thread. The place is held until the call returns, even if the caller is cancelled:
        a thread cannot be cancelled."""
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


async def complete(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which runs to its end even if the caller is cancelled. The caller then waits for it before
    CancelledError is raised."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        _consume(task)
        raise


async def run_held(executor: Executor, work: Callable[[], T], release: Callable[[], None]) -> T:
    """The result of `work`, called on a thread. `release` is called when it returns, even if the caller is cancelled."""
    try:
        done = asyncio.get_running_loop().run_in_executor(executor, work)
    except BaseException:
        release()
        raise
    done.add_done_callback(lambda _: release())
    done.add_done_callback(_consume)
    return await asyncio.shield(done)


def _consume(done: asyncio.Future[T]) -> None:
    """Retrieve the exception: the caller may be gone."""
    if not done.cancelled():
        done.exception()
