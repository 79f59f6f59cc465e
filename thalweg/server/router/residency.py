"""Residency: which models of a server are in memory. Knows no engine and no HTTP.

A model is loaded when a request asks for it. The least recently used idle models are unloaded where memory is short. Models
that wait for room are loaded in the order of their first request. If no idle models free enough memory, busy ones are drained:
they finish their open requests, and new ones wait behind the model that asked first. A busy model is drained only after it was
loaded for TENURE times the duration of its load, so loading takes a bounded share of the time under any load.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from thalweg.errors import UnavailableError

log = logging.getLogger(__name__)
TENURE = 4.0
RETRY_SECONDS = 0.25
"""Pause before another attempt to unload an engine that cannot be unloaded now."""
LOADED, LOADING, UNLOADED, UNLOADING, SLEEPING = "loaded", "loading", "unloaded", "unloading", "sleeping"


class Resident:
    """A model that may be in memory. Subclasses load and unload it."""

    def __init__(self, name: str, cost: Mapping[str, int], *, pinned: bool = False, idle_seconds: float = 0.0) -> None:
        """cost: bytes in memory, by platform. pinned: never unloaded to make room. idle_seconds: unloaded after so long without
        a request. 0: never."""
        self.name, self.cost, self.pinned, self.idle_seconds = name, cost, pinned, idle_seconds
        self.state = UNLOADED
        self.asleep = False
        """An operator put it to sleep: requests wait until it is woken."""
        self.open = 0
        """Requests that use it."""
        self.waiters: list[asyncio.Future[None]] = []
        self.draining = False
        self.used = self.idle_since = self.loaded_at = self.load_seconds = 0.0

    @property
    def status(self) -> str:
        """loaded | loading | unloaded | unloading | sleeping"""
        return SLEEPING if self.asleep and self.state == UNLOADED else self.state

    @property
    def is_lost(self) -> bool:
        """Did its engine end for good?"""
        return False

    async def load(self) -> None:
        """Load it. Any exception goes to the requests that wait for it."""
        raise NotImplementedError

    async def unload(self) -> None:
        """Release its memory. UnavailableError if that is not possible now."""
        raise NotImplementedError


class Residency:
    """The residents of one server. Everything on one event loop."""

    def __init__(
        self, residents: Sequence[Resident], budgets: Mapping[str, int], max_loaded: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """budgets: bytes of each platform. max_loaded: most models in memory at once."""
        self._residents, self._budgets, self._max_loaded, self._clock = tuple(residents), budgets, max_loaded, clock
        self._wanted: list[Resident] = []
        """Models to be loaded, in the order of their first request."""
        self._moves: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.loads = 0

    # ------------------------------------------------------------------ requests

    async def enter(self, resident: Resident) -> None:
        """Wait until the model serves, and count one more open request. Errors of `Resident.load` pass through."""
        if self.try_enter(resident):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        resident.waiters.append(turn)
        self._want(resident)
        self._review()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave(resident)
            else:
                self._give_up(resident, turn)
            raise

    def is_open(self, resident: Resident) -> bool:
        """Can a request enter without waiting?"""
        if resident.state == LOADED and resident.is_lost:
            resident.state = UNLOADED
        return resident.state == LOADED and not resident.draining and not resident.waiters

    def try_enter(self, resident: Resident) -> bool:
        """Count one more open request if the model serves now."""
        if not self.is_open(resident):
            return False
        self._admit(resident)
        return True

    def leave(self, resident: Resident) -> None:
        """A request that entered has ended."""
        resident.open -= 1
        if not resident.open:
            resident.idle_since = self._clock()
        self._review()

    async def sleep(self, resident: Resident, unload: Callable[[], Any]) -> None:
        """Unload a model by `unload()`, until `wake_up`. Requests wait meanwhile. Errors of `unload` pass through, and leave it
        loaded. UnavailableError while it is loading or unloading."""
        if resident.state in (LOADING, UNLOADING):
            raise UnavailableError(f"model {resident.name} is {resident.state}; try again later")
        resident.asleep = True
        if resident in self._wanted:
            self._wanted.remove(resident)
        if resident.state != LOADED:
            return
        resident.state = UNLOADING
        try:
            await unload()
            resident.state = UNLOADED
        except BaseException:
            resident.state, resident.asleep = LOADED, False
            raise
        finally:
            self._review()

    async def wake_up(self, resident: Resident) -> None:
        """Load it, if it is not loaded, and let its requests in. Errors as `enter`."""
        resident.asleep = False
        await self.enter(resident)
        self.leave(resident)

    async def close(self) -> None:
        """Stop loading and unloading. Requests that wait get UnavailableError."""
        if self._timer is not None:
            self._timer.cancel()
        for move in list(self._moves):
            move.cancel()
        await asyncio.gather(*self._moves, return_exceptions=True)
        self._wanted.clear()
        for resident in self._residents:
            self._refuse(resident, UnavailableError("the server is shutting down"))

    # ------------------------------------------------------------------ decisions

    def _want(self, resident: Resident) -> None:
        if not resident.asleep and resident.state != LOADING and resident not in self._wanted:
            self._wanted.append(resident)

    def _give_up(self, resident: Resident, turn: asyncio.Future[None]) -> None:
        """The request of `turn` waits no more."""
        if turn in resident.waiters:
            resident.waiters.remove(turn)
        if not resident.waiters and resident in self._wanted:
            self._wanted.remove(resident)
        self._review()

    def _admit(self, resident: Resident) -> None:
        resident.open += 1
        resident.used = self._clock()

    def _refuse(self, resident: Resident, error: BaseException) -> None:
        turns, resident.waiters = resident.waiters, []
        for turn in turns:
            if not turn.done():
                turn.set_exception(error)

    def _review(self) -> None:
        """Start every move that is possible now. Called after each change."""
        for resident in self._residents:
            resident.draining = False
        due = self._unload_idle()
        while self._wanted:
            first = self._wanted[0]
            if first.state == LOADED:  # it was drained for a model that is not wanted any more
                self._let_in(first)
                continue
            if first.state == UNLOADING or not self._fits([*self._present(), first]):
                due = min(due, self._make_room(first))
                break
            self._wanted.pop(0)
            self._start(self._load(first))
            first.state = LOADING
        for resident in self._residents:
            if resident.state == LOADED and not resident.draining and not resident.asleep:
                self._let_in(resident)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due < float("inf"):
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self._clock()), self._review)

    def _let_in(self, resident: Resident) -> None:
        turns, resident.waiters = resident.waiters, []
        for turn in turns:
            if not turn.done():
                self._admit(resident)
                turn.set_result(None)
        if resident in self._wanted:
            self._wanted.remove(resident)

    def _unload_idle(self) -> float:
        """Unload models without requests for long enough. Returns the time of the next such look."""
        due, now = float("inf"), self._clock()
        for resident in self._residents:
            if resident.state != LOADED or resident.open or resident.waiters or resident.pinned or not resident.idle_seconds:
                continue
            end = resident.idle_since + resident.idle_seconds
            if end <= now:
                log.info("model %s is unloaded: no request for %g s", resident.name, resident.idle_seconds)
                self._evict(resident)
            else:
                due = min(due, end)
        return due

    def _make_room(self, wanted: Resident) -> float:
        """Unload or drain models until `wanted` fits. Returns the time at which to look again, if nothing happens before."""
        staying = [r for r in self._present() if r.state != UNLOADING]
        if self._fits([*staying, wanted]):
            return float("inf")  # when those that are unloading have ended
        loaded = sorted((r for r in staying if r.state == LOADED and not r.pinned), key=lambda r: r.used)
        idle = [r for r in loaded if not r.open]
        if (victims := self._choose(staying, idle, wanted)) is not None:
            for victim in victims:
                log.info("model %s is unloaded to make room for %s", victim.name, wanted.name)
                self._evict(victim)
            return float("inf")
        now = self._clock()
        ends = {r: r.loaded_at + TENURE * r.load_seconds for r in loaded if r.open}
        drainable = [*idle, *(r for r, end in ends.items() if end <= now)]
        for victim in self._choose(staying, drainable, wanted) or ():
            victim.draining = True
        return min((end for end in ends.values() if end > now), default=float("inf"))

    def _choose(self, present: Iterable[Resident], candidates: Sequence[Resident], wanted: Resident) -> list[Resident] | None:
        """The first candidates without which `wanted` fits. None: it does not fit without all of them."""
        staying, chosen = list(present), list[Resident]()
        for candidate in candidates:
            if self._fits([*staying, wanted]):
                break
            staying.remove(candidate)
            chosen.append(candidate)
        if not self._fits([*staying, wanted]):
            return None
        for candidate in list(chosen):  # a later, larger one may have made it unnecessary
            if self._fits([*staying, candidate, wanted]):
                staying.append(candidate)
                chosen.remove(candidate)
        return chosen

    def _present(self) -> list[Resident]:
        """Models that hold memory."""
        return [r for r in self._residents if r.state != UNLOADED]

    def _fits(self, residents: Sequence[Resident]) -> bool:
        if self._max_loaded is not None and len(residents) > self._max_loaded:
            return False
        return all(sum(r.cost.get(p, 0) for r in residents) <= budget for p, budget in self._budgets.items())

    # ------------------------------------------------------------------ moves

    def _start(self, move: Any) -> None:
        task = asyncio.get_running_loop().create_task(move)
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)

    def _evict(self, resident: Resident) -> None:
        resident.state = UNLOADING
        self._start(self._unload(resident))

    async def _load(self, resident: Resident) -> None:
        begun = self._clock()
        log.info("model %s is loading", resident.name)
        try:
            await resident.load()
        except Exception as e:
            log.error("model %s could not be loaded: %s", resident.name, e)
            resident.state = UNLOADED
            self._refuse(resident, e)
        else:
            self.loads += 1
            now = self._clock()
            resident.state = LOADED
            resident.loaded_at = resident.used = resident.idle_since = now
            resident.load_seconds = now - begun
            log.info("model %s is loaded, after %.2f s", resident.name, resident.load_seconds)
            if not resident.asleep:
                self._let_in(resident)
        finally:
            if resident.state == LOADING:  # cancelled
                resident.state = UNLOADED
        self._review()

    async def _unload(self, resident: Resident) -> None:
        while True:
            try:
                await resident.unload()
                break
            except UnavailableError as e:
                log.info("model %s cannot be unloaded yet: %s", resident.name, e)
                await asyncio.sleep(RETRY_SECONDS)
        resident.state = UNLOADED
        self._review()
