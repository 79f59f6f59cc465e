"""Estimate of the time for a queue to empty, from the service times of earlier requests.

By Little's law a server with always `window` sequences serves window / (mean seconds each stays) per second. Measurements under
low load are soon replaced. Until then the time since the last end counts as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable

WEIGHT = 1 / 8
"""Weight of the latest prompt in the mean."""


class Drain:
    """window: sequences served at once."""

    def __init__(self, window: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.window, self._clock = window, clock
        self._work = self._cost = 0.0
        """Means of finished prompts: sequences x seconds, sequences. 0: none has finished."""
        self._running = 0
        self._since = 0.0
        """Time when one last ended, or the first began."""

    def start(self) -> float:
        """A prompt is served from now on. Returns `started` for `end`."""
        now = self._clock()
        if not self._running:
            self._since = now
        self._running += 1
        return now

    def end(self, started: float, cost: int) -> None:
        """It had that many sequences, and needs no more."""
        now = self._clock()
        self._running, self._since = self._running - 1, now
        weight = WEIGHT if self._cost else 1.0
        self._work += weight * (cost * (now - started) - self._work)
        self._cost += weight * (cost - self._cost)

    def seconds(self, prompts: int) -> float:
        """Until that many have been served, as far as is known."""
        silent = self._clock() - self._since if self._running else 0.0
        return prompts * max(self._work, silent * max(self._cost, 1.0)) / self.window
