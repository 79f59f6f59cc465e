"""One standby process for all models of a server: the next engine starts from it."""

from __future__ import annotations

import asyncio

from thalweg.engine.client.standby import Standby

REFILL_AFTER = 1.0
"""Seconds from a load to the start of the next standby process, so that it does not slow the requests that waited."""


class StandbyReserve:
    """At most one process, which has loaded the engine's code and no model."""

    def __init__(self, device: str | None, first: Standby | None = None) -> None:
        """device: the expected `--device`. None: no process is kept. first: the process to begin with."""
        self._device, self._standby = device, first
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def take(self) -> Standby | None:
        """The process, if it is alive. The caller ends it from now on."""
        standby, self._standby = self._standby, None
        if standby is None or standby.alive:
            return standby
        standby.end()
        return None

    def refill(self) -> None:
        """Start another process soon, if there is none."""
        if self._device is None or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(REFILL_AFTER, self._fill)

    def _fill(self) -> None:
        self._timer = None
        if self._standby is not None and not self._standby.alive:
            self._standby.end()
            self._standby = None
        if self._standby is None and self._device is not None:
            self._standby = Standby(self._device)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._standby is not None:
            self._standby.end()
