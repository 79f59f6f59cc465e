"""Profiles of an engine's workers, as its loop starts, advances and stops them."""

from __future__ import annotations

import logging

from thalweg.engine.control.executor import Executor

logger = logging.getLogger(__name__)
WRITTEN = "a profile was written: %s"


class Profiles:
    """At most one profile at a time, on every rank. Only for executors with a profiler_config."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._running = False

    def start(self, prefix: str = "thalweg") -> None:
        """Record operations from now on. RequestError if a profile runs already, or the device runs no torch."""
        self._executor.call("start_profile", prefix)
        self._running = True

    def advance(self) -> None:
        """A step has ended. A profile with a limit of steps may end with it. OSError if its file could not be written."""
        if self._running and any(self._log(self._executor.call("advance_profile"))):
            self._running = False

    def stop(self) -> None:
        """Write the trace of each rank. RequestError if no profile runs, OSError if a file could not be written."""
        self._running = False
        self._log(self._executor.call("stop_profile"))

    @staticmethod
    def _log(traces: list[str | None]) -> list[str | None]:
        for trace in filter(None, traces):
            logger.info(WRITTEN, trace)
        return traces
