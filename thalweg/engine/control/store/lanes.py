"""Threads that call a store, so that steps never wait for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol


class LaneCall(Protocol):
    """A call that another thread makes."""

    @property
    def is_done(self) -> bool: ...

    def result(self) -> Any:
        """The result of the call, or its error, raised. Only where `is_done`."""
        ...


class Lane(Protocol):
    """Makes calls in the order in which they were given."""

    def submit(self, call: Callable[[], Any], /) -> LaneCall: ...

    def wait(self, seconds: float, /) -> None:
        """Wait until the next call is done, at most this long."""
        ...


class _ThreadCall:
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self.is_done = call, False
        self._value: Any = None
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as e:  # a store may raise anything, SystemExit and panics of native code included
            self._error = e if isinstance(e, Exception) else RuntimeError(f"{type(e).__name__}: {e}")
        del self._call
        self.is_done = True

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class ThreadLane:
    """One thread. It does not keep the process alive: a store that hangs cannot hold up the engine's end."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[_ThreadCall] = queue.SimpleQueue()
        self._some_done = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, call: Callable[[], Any]) -> LaneCall:
        job = _ThreadCall(call)
        self._jobs.put(job)
        return job

    def wait(self, seconds: float) -> None:
        self._some_done.wait(seconds)
        self._some_done.clear()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            job.run()
            self._some_done.set()
