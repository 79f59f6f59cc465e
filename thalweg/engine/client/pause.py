"""Pause and sleep. A paused engine starts no step. The process of a sleeping engine is ended, and all its memory is released.

New requests wait at a gate meanwhile. Open requests are ended, waited for, or kept. Kept ones continue with unchanged text:
the client has their emitted tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from thalweg.engine.client.fleet import Engines
from thalweg.engine.client.frontend import Frontend
from thalweg.errors import RequestError, UnavailableError

MODES = ("abort", "wait", "keep")
LEVELS = (1, 2)
LOOK_SECONDS = 0.02
NO_SLEEP = "enable_sleep_mode: sleeping needs an engine started with it (--enable-sleep-mode)"


class PauseController:
    """running: ids of the open requests. abort: ends some, and notifies their readers."""

    def __init__(
        self, supervisor: Engines, running: Callable[[], list[str]], abort: Callable[[list[str]], Awaitable[None]]
    ) -> None:
        self._supervisor, self._running, self._abort = supervisor, running, abort
        self._gate: dict[str, asyncio.Future[None]] = {}
        self.paused = self.asleep = False
        self.level = 0
        """Level of the sleep. 0: awake."""

    @property
    def waiting(self) -> int:
        """Requests at the gate."""
        return len(self._gate)

    async def wait_admission(self, request_id: str) -> None:
        """Wait until the engine accepts requests. UnavailableError if this one is aborted before."""
        while self.paused or self.asleep:
            turn = self._gate[request_id] = asyncio.get_running_loop().create_future()
            try:
                await turn
            finally:
                if self._gate.get(request_id) is turn:
                    del self._gate[request_id]

    def abort_waiting(self, request_id: str) -> None:
        turn = self._gate.get(request_id)
        if turn is not None and not turn.done():
            turn.set_exception(UnavailableError("the engine is paused or asleep, and the request was ended"))

    async def pause(self, mode: str, clear_cache: bool) -> None:
        """mode: the fate of open requests. abort ends them, wait lets them finish, keep holds them."""
        if mode not in MODES:
            raise RequestError(f"mode: {mode!r} is not one of {', '.join(MODES)}", "mode")
        self.paused = True
        await self._settle(mode, lambda: self.paused)
        if self.paused:
            await self._supervisor.pause(True)
            if clear_cache:
                await self._supervisor.reset_prefix_cache()

    async def resume(self) -> None:
        """Go on. A sleeping engine stays asleep."""
        self.paused = False
        if not self.asleep:
            await self._supervisor.pause(False)
            self.open()

    async def sleep(self, level: int, mode: str) -> None:
        """End the engine's process, at level 2 also the standby process. UnavailableError if no engine serves."""
        if level not in LEVELS:
            raise RequestError(f"level: {level} is not 1 or 2", "level")
        if mode not in MODES:
            raise RequestError(f"mode: {mode!r} is not one of {', '.join(MODES)}", "mode")
        if self.asleep:
            return
        self.asleep = True
        try:
            await self._settle(mode, lambda: self.asleep)
            if self.asleep:  # else it was woken while it waited
                await self._supervisor.sleep(standby_too=level == 2)
                self.level = level
        except BaseException:
            self.asleep = False
            self.open()
            raise

    async def wake_up(self) -> None:
        """Start an engine again. EngineDeadError if that fails for good. An engine paused before it slept stays paused."""
        await self._supervisor.wake_up()
        self.asleep, self.level = False, 0
        self.open()

    async def _settle(self, mode: str, still: Callable[[], bool]) -> None:
        if mode == "abort":
            await self._abort(self._running())
        while mode == "wait" and still() and self._running():
            await asyncio.sleep(LOOK_SECONDS)

    def open(self) -> None:
        """Let all requests at the gate check again."""
        for turn in self._gate.values():
            if not turn.done():
                turn.set_result(None)

    def close(self) -> None:
        """There will be no engine: waiting requests get its error."""
        self.paused = self.asleep = False
        self.open()


class PauseMethods:
    """The part of AsyncLLM that pauses and sleeps."""

    _resting: PauseController
    _frontend: Frontend
    _wait_started: Callable[[], Awaitable[None]]
    _open_ids: Callable[[], list[str]]

    async def pause_generation(
        self, mode: str = "abort", wait_for_inflight_requests: bool | None = None, clear_cache: bool = True
    ) -> None:
        """Start no step until `resume_generation`. Open requests are ended ("abort"), finished first ("wait") or held
        ("keep"). New ones wait. wait_for_inflight_requests: the old name of "wait". RequestError names a wrong argument."""
        await self._wait_started()
        await self._resting.pause("wait" if wait_for_inflight_requests else mode, clear_cache)

    async def resume_generation(self) -> None:
        """Go on after `pause_generation`. A sleeping engine stays asleep."""
        await self._resting.resume()

    async def is_paused(self) -> bool:
        return self._resting.paused

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """End the engine's process, and release all its memory, until `wake_up`. mode: as for `pause_generation`. level 2
        also ends the standby process, level 0 only pauses. RequestError without `enable_sleep_mode`. UnavailableError while
        the engine is restarting."""
        if not self._frontend.args.enable_sleep_mode:
            raise RequestError(NO_SLEEP, "enable_sleep_mode")
        await self._wait_started()
        await (self._resting.sleep(level, mode) if level else self._resting.pause(mode, False))

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Start the engine again, with the weights its model has now. Returns when it serves. Kept requests go on."""
        if tags:
            raise RequestError("tags: weights and cache come back together; omit it", "tags")
        await (self._resting.wake_up() if self._resting.asleep else self._resting.resume())

    async def is_sleeping(self) -> bool:
        return self._resting.asleep

    async def wait_for_requests_to_drain(self, drain_timeout: float | None = 300) -> None:
        """Returns when no request is open. TimeoutError after so many seconds."""
        async with asyncio.timeout(drain_timeout):
            while self._open_ids():
                await asyncio.sleep(LOOK_SECONDS)

    @property
    def sleep_level(self) -> int:
        """0: awake."""
        return self._resting.level

    @property
    def paused_requests(self) -> int:
        """Requests that wait for `resume` or `wake_up`."""
        return self._resting.waiting
