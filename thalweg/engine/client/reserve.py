"""The standby process of a supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from thalweg.engine.client.standby import Standby

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
STANDBY_AFTER = 2.0
"""Seconds from an engine's being ready to the start of the process that would replace it."""
STANDBY_AT_LAST = 60.0
"""Upper bound of that delay, where such processes die repeatedly."""


class EngineReserve:
    """At most one standby process. `fill` keeps it there."""

    def __init__(self, device: str) -> None:
        """device: `--device` of the engines."""
        self._device = device
        self.standby: Standby | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that waits now."""
        return self.standby.pid if self.standby and self.standby.alive else None

    def adopt(self, standby: Standby) -> None:
        """Keep this process. Without use for it, it ends."""
        if self.standby is not None and self.standby.alive:
            standby.end()
        else:
            self.standby = standby

    def end(self) -> None:
        """End the process. `fill`, if it runs, starts another."""
        if self.standby is not None:
            self.standby.end()

    def fill(self, ready: Callable[[], bool]) -> None:
        """Start a process now and whenever the last was used or died. ready: whether the engine serves. Once only."""
        if self._task is None:
            self._task = asyncio.create_task(self._fill(ready))

    async def stop(self) -> None:
        """End the process, and start no other."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self.end()

    async def _fill(self, ready: Callable[[], bool]) -> None:
        """A process starts after a delay, so that it does not slow the requests that waited for a start. The delay grows if
        such processes die soon."""
        lost = 0
        while True:
            while not ready():
                await asyncio.sleep(LOOK_SECONDS)
            await asyncio.sleep(min(STANDBY_AFTER * 2**lost, STANDBY_AT_LAST))
            if not ready():
                continue
            standby = self.standby = Standby(self._device)
            since = time.monotonic()
            while standby.alive:  # looking reaps it
                await asyncio.sleep(LOOK_SECONDS)
            soon = time.monotonic() - since < STANDBY_AT_LAST
            lost = lost + 1 if soon and not standby.is_taken else 0
            if not standby.is_taken:
                logger.warning("process %d, which stood by, has ended; another will", standby.pid)
                standby.end()
