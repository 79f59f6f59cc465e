"""When an engine process is ended, and how often another may replace it. Knows no request."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from thalweg.engine.client.process import EngineProcess
from thalweg.errors import EngineDeadError

WINDOW_SECONDS = 600.0
"""`max_restarts` are counted over this long."""
LOOK_SECONDS = 0.25
FIRST_DELAY_SECONDS, LAST_DELAY_SECONDS = 0.25, 10.0
"""Before the second restart in a row without a token, and the upper bound of later ones. Each waits twice as long."""


class RestartBudget:
    """Restarts of the last ten minutes. Those in a row without a token wait longer each time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._deaths: deque[float] = deque()
        self._fruitless = 0

    async def spend(self, why: EngineDeadError) -> None:
        """Count a restart, and wait before it. EngineDeadError if none is left. why: what ended the engine."""
        now = time.monotonic()
        while self._deaths and self._deaths[0] < now - WINDOW_SECONDS:
            self._deaths.popleft()
        if len(self._deaths) >= self._limit:
            raise EngineDeadError(
                f"{why}; the {len(self._deaths)} restarts allowed within ten minutes (max_restarts) are used up"
            )
        self._deaths.append(now)
        self._fruitless += 1
        if self._fruitless > 1:
            await asyncio.sleep(min(FIRST_DELAY_SECONDS * 2 ** (self._fruitless - 2), LAST_DELAY_SECONDS))

    def reset_delay(self) -> None:
        """An engine has made a token: the next restart does not wait."""
        self._fruitless = 0


async def watch(engine: EngineProcess, heartbeat_timeout: float, hang_timeout: float) -> None:
    """Kill an engine that shows no life, or no progress with work present. Seconds; runs until it is cancelled."""
    last = time.monotonic()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = time.monotonic()
        slept, last = now - last, now
        if slept > LOOK_SECONDS + 1.0:  # this process itself was suspended: first read the frames that have come
            continue
        if now - engine.heard > heartbeat_timeout:
            engine.kill(f"no sign of life for {now - engine.heard:.1f} s (heartbeat_timeout)")
        elif engine.working and now - engine.stepped > hang_timeout:
            engine.kill(f"no step finished for {now - engine.stepped:.0f} s with work present (hang_timeout)")
