"""Pause and sleep. Paused, the engine starts no step. Asleep, its process is ended, and all its memory is given back.

New requests wait at a gate meanwhile. Those under way are ended, waited for, or kept, and kept ones go on with the text they
would have had: what was emitted is on this side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from thalweg.engine.client.supervisor import Supervisor
from thalweg.errors import RequestError, UnavailableError

MODES = ("abort", "wait", "keep")
LEVELS = (1, 2)
LOOK_SECONDS = 0.02
NO_SLEEP = "enable_sleep_mode: sleeping needs an engine started with it (--enable-sleep-mode)"


class Resting:
    """running: ids of the open requests. abort: ends some of them, their readers told."""

    def __init__(
        self, supervisor: Supervisor, running: Callable[[], list[str]], abort: Callable[[list[str]], Awaitable[None]]
    ) -> None:
        self._supervisor, self._running, self._abort = supervisor, running, abort
        self._gate: dict[str, asyncio.Future[None]] = {}
        self.paused = self.asleep = False
        self.level = 0
        """Of the sleep. 0: awake."""

    @property
    def waiting(self) -> int:
        """Requests at the gate."""
        return len(self._gate)

    async def admitted(self, request_id: str) -> None:
        """Returns when the engine takes requests. UnavailableError if this one is aborted before."""
        while self.paused or self.asleep:
            turn = self._gate[request_id] = asyncio.get_running_loop().create_future()
            try:
                await turn
            finally:
                if self._gate.get(request_id) is turn:
                    del self._gate[request_id]

    def aborted(self, request_id: str) -> None:
        turn = self._gate.get(request_id)
        if turn is not None and not turn.done():
            turn.set_exception(UnavailableError("the engine is paused or asleep, and the request was ended"))

    async def pause(self, mode: str, clear_cache: bool) -> None:
        """mode: what becomes of the requests under way. abort ends them, wait lets them finish, keep holds them."""
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
        """End the engine's process, at level 2 also the one that stands by. UnavailableError if there is none that serves."""
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
        """Let everybody at the gate look again."""
        for turn in self._gate.values():
            if not turn.done():
                turn.set_result(None)

    def close(self) -> None:
        """There will be no engine: who waits shall find out."""
        self.paused = self.asleep = False
        self.open()
