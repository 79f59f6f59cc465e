"""A pool of child processes for untrusted jobs (`host.confined`). A child is reused, and replaced when it dies.

A job that crashes or exceeds its time fails its own request and ends its child. Other jobs are unaffected. This module knows
nothing about the jobs.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

from thalweg.host import processes
from thalweg.host.confined import FELL, HEADER, MAX_FRAME
from thalweg.host.processes import ChildGoneError, ChildStoppedError, ChildTimeoutError

START_SECONDS = 20.0
"""Seconds a new child may take to start, beyond its first job."""
GRACE_SECONDS = 1.0
"""Seconds after the kernel's deadline for a child at which we end it ourselves."""
CRASHES = tuple(-s for s in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE))


class StalledError(Exception):
    """The child got no processor time within its limit because the machine stalled, or two children in sequence were stopped.
    Not retried: the job has waited long enough."""


class LostError(Exception):
    """Two children in sequence were lost, and the job is not the cause."""


class CpuLimitError(Exception):
    """The job used all its processor time."""


class CrashedError(Exception):
    """The job crashed its process."""


class ForkKilledError(Exception):
    """A signal ended the fork that did the job. Its process is ready for the next."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"signal {number}")


class Cell:
    """One child. Used by one thread at a time."""

    def __init__(self, module: str, opening: bytes = b"") -> None:
        self._child = processes.Child(module)
        self._opening = opening
        self._started = False
        self.pid = self._child.pid

    def ask(self, data: bytes, wall: float) -> bytes:
        """The answer to a frame: a body. ChildGoneError, ChildTimeoutError, ChildStoppedError, ForkKilledError."""
        until = time.monotonic() + (GRACE_SECONDS if self._started else START_SECONDS) + wall
        if not self._started:
            data = self._opening + data
        self._child.write(data, until)
        (size,) = HEADER.unpack(self._child.read(HEADER.size, until))
        if size & FELL:
            self._started, self._opening = True, b""
            raise ForkKilledError(size & ~FELL)
        if size > MAX_FRAME:
            raise ChildGoneError(self._child.kill())
        body = self._child.read(size, until)
        self._started, self._opening = True, b""
        return body

    def end(self) -> None:
        self._child.kill()


class Cells:
    """Up to `most` children at work. Thread-safe. They start when first needed, or with `prepare`. They end with this object
    or this process."""

    def __init__(
        self, module: str, most: int, last: Callable[[bytes], bool], opening: Callable[[], bytes] | None = None
    ) -> None:
        """module: the module that a child runs. last: whether an answer announces the end of its child. opening: a frame that
        every child gets before its first job, and does not answer."""
        self._module, self._last, self._opening = module, last, opening
        self._free = threading.Semaphore(most)
        self._lock = threading.Lock()
        self._idle: list[Cell] = []

    def prepare(self) -> None:
        """Have a child ready soon. Does not wait."""
        with self._lock:
            if not self._idle:
                self._idle.append(self._make())

    def _make(self) -> Cell:
        return Cell(self._module, self._opening() if self._opening else b"")

    def ask(self, data: bytes, wall: float) -> bytes:
        """The answer to a job. wall: seconds of the clock after which it is given up. Raises the errors above."""
        with self._free:
            # Idle children may all have been killed or stopped long ago: only one made for this job tells something about it.
            reply = self._try(data, wall, fresh=False) or self._try(data, wall, fresh=True)
        if reply is None:
            raise LostError
        return reply

    def _try(self, data: bytes, wall: float, fresh: bool) -> bytes | None:
        """One child's answer. None if something else than this job ended it. fresh: not one that was idle."""
        with self._lock:
            cell = self._idle.pop() if self._idle and not fresh else None
        cell = cell or self._make()
        try:
            reply = cell.ask(data, wall)
        except ChildTimeoutError as e:
            cell.end()
            if isinstance(e, ChildStoppedError) and not fresh:
                return None
            raise StalledError from None
        except ForkKilledError as e:
            error = _verdict(-e.number)
            if error is None:
                cell.end()
                return None
            with self._lock:
                self._idle.append(cell)
            raise error from None
        except ChildGoneError as e:
            cell.end()
            error = _verdict(e.status)
            if error is None:
                return None
            self.prepare()
            raise error from None
        if self._last(reply):
            cell.end()
            self.prepare()
        else:
            with self._lock:
                self._idle.append(cell)
        return reply

    def pids(self) -> list[int]:
        """Of the idle children."""
        with self._lock:
            return [c.pid for c in self._idle]

    def close(self) -> None:
        """End the idle children. A later `ask` starts new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for cell in idle:
            cell.end()


def _verdict(status: int) -> Exception | None:
    """The error that an exit status means for the job. The kernel sends SIGPROF when its processor time is exhausted, and
    SIGALRM when it had time but did not get it. A crash is the job's doing."""
    if status == -signal.SIGALRM:
        return StalledError()
    if status == -signal.SIGPROF:
        return CpuLimitError()
    return CrashedError() if status in CRASHES else None
