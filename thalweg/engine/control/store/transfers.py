"""The traffic between the cache and a store, as the core drives it. Nothing here waits for the store while there are steps to
do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from thalweg.engine.control.cache.tables import KVCache
from thalweg.engine.control.request import Request
from thalweg.engine.control.store.arrivals import StoreLoads
from thalweg.engine.control.store.base import Store
from thalweg.engine.control.store.departures import StoreSaves
from thalweg.engine.control.store.handovers import Handovers
from thalweg.engine.control.store.lanes import Lane, LaneCall, ThreadLane
from thalweg.engine.control.store.mover import Mover
from thalweg.engine.control.store.names import SUM_BYTES, StoreKeys

POLL_SECONDS = 0.005
"""Between looks at the store's threads, where nothing else is to be done."""
CLOSE_SECONDS = 4.0
"""Seconds a shared store gets for queued blocks when the engine ends: less than the client waits for that end."""


@dataclass(frozen=True, slots=True)
class StoreConnection:
    """A store, and the mover of its blocks."""

    store: Store
    mover: Mover
    load_timeout: float
    """Seconds that a request waits for a prefix, at most."""
    lanes: Callable[[str], Lane] = ThreadLane
    role: str = "kv_both"
    """As `TransferConfig.kv_role`."""


class Transfers:
    def __init__(self, to: StoreConnection, kv: KVCache, clock: Callable[[], float], least: int) -> None:
        """least: tokens that a load must save for a request to wait for it."""
        self._store, self._mover = to.store, to.mover
        names = StoreKeys(to.mover.signature)
        self._store.set_block_sizes([size + SUM_BYTES for size in to.mover.block_bytes])
        self._reading, self._writing = to.lanes("kv store: load"), to.lanes("kv store: save")
        self.departures = StoreSaves(to.store, to.mover, names, self._writing)
        self.arrivals = StoreLoads(to.store, to.mover, names, self._reading, kv, clock, to.load_timeout, least)
        self.handovers = Handovers(self.departures, clock, to.load_timeout)
        self._loads = to.role != "kv_producer"
        if to.role != "kv_consumer":
            kv.prefix.observers += (self.departures,)

    @property
    def waiting(self) -> bool:
        """Does a request wait for the store?"""
        return self.arrivals.waiting

    def coming(self, request: Request, found: int, running: int) -> bool:
        """Is a prefix on its way that a waiting request had better wait for? One that has come can be found afterwards."""
        if not self._loads:
            return False
        imports = None
        while imports is None:
            if self.arrivals.coming(request, found):
                return True
            self.departures.muted = True
            imports = self.arrivals.land(request, found, running)
            self.departures.muted = False
        if imports:
            self.departures.flush()  # blocks that these overwrite leave first
            for group, blocks, rows in imports:
                self._mover.import_(group, blocks, rows)
        return False

    def forget(self, request: Request) -> None:
        self.arrivals.forget(request)

    def flush(self) -> None:
        """Called before a step is launched."""
        self.departures.flush()

    def pause(self) -> None:
        """Nothing can be done before a load has finished."""
        self._reading.wait(POLL_SECONDS)

    def pause_handover(self) -> None:
        """Nothing can be done before blocks for another engine are saved."""
        if not self.settle():
            self._writing.wait(POLL_SECONDS)

    def settle(self) -> bool:
        """There is no step to run: save a few more blocks. Returns whether more is left."""
        return self.departures.settle(POLL_SECONDS)

    def reset(self) -> None:
        """The prefix cache has been emptied."""
        self.departures.collect(wait=True)  # saved before the store is cleared, not after
        self.arrivals.reset()
        self._writing.submit(self._store.clear)

    def stats(self) -> dict[str, int]:
        """Fields of `messages.Stats`."""
        came, went = self.arrivals, self.departures
        return {
            "store_queries": came.queries,
            "store_hits": came.hits,
            "store_saved": went.saved_bytes,
            "store_failed": came.failed + went.failed,
        }

    def close(self, save: bool = True) -> None:
        """Save blocks that others may find, as far as the store keeps up. save: False where ranks and so blocks are lost."""
        until = time.monotonic() + CLOSE_SECONDS
        while save and self._store.shared and self.settle() and time.monotonic() < until:
            pass
        calls = self._reading.submit(lambda: None)
        _wait(self._reading, calls, until)
        if calls.is_done:  # a store whose calls hang is left open
            _wait(self._writing, self._writing.submit(self._store.close), until)


def _wait(lane: Lane, call: LaneCall, until: float) -> None:
    """Until the call is done, or the time has come."""
    while not call.is_done and time.monotonic() < until:
        lane.wait(POLL_SECONDS)
