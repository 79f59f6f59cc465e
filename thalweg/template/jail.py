"""Rendering chat templates where they can do no harm: in child processes with limits, killed when they pass one.

`Jail` keeps a few children ready. A job that takes too long, uses too much memory or writes too much costs its own
request an error and its child its life. Other jobs never notice. Knows no tokenizer.
"""

from __future__ import annotations

import signal
import threading
import time

import msgspec

from thalweg.errors import RequestError, ThalwegError, UnavailableError
from thalweg.host import processes
from thalweg.host.processes import ChildGoneError, ChildTimeoutError
from thalweg.template.wire import HEADER, MAX_FRAME, Done, Job, Limits, Refused, frame

START_SECONDS = 20.0
"""Seconds a new child may take to start, beyond its first job."""
GRACE_SECONDS = 1.0
"""Seconds after the kernel's deadline for a child at which we end it ourselves."""
WALL = 20
"""Seconds of the clock for a second of processor time. Templates cannot wait: whoever needs more stands on a machine that stood
still, or is stopped."""
MEMORY = 96 << 20
"""Bytes a rendering may use. An idle child has some 25 MiB."""
MEMORY_PER_BYTE = 16
"""Bytes more for each byte of the messages: they exist as text of up to 4 bytes a character, a few times over."""
BYTES_PER_SECOND = 32 << 20
OUTPUT = 4 << 20
"""Characters of a rendered prompt, beside twice the size of the messages."""


class BrokenTemplateError(ThalwegError):
    """The template does not parse."""


class LimitError(RequestError):
    """The template used more than it may."""


class Jail:
    """Up to `cells` children that render templates. Thread-safe. Children start when first needed, or with `prepare`.
    They end with this object or this process."""

    def __init__(self, cells: int, seconds: float) -> None:
        """seconds: processor time for one job, its template's compilation included."""
        self._seconds = seconds
        self._free = threading.Semaphore(cells)
        self._lock = threading.Lock()
        self._idle: list[_Cell] = []

    def prepare(self) -> None:
        """Have a child ready soon. Does not wait."""
        with self._lock:
            if not self._idle:
                self._idle.append(_Cell())

    def run(self, job: Job) -> str:
        """The rendered text. LimitError: a limit was passed (param "chat_template"). RequestError: what the template or its
        caller refused. BrokenTemplateError. UnavailableError: children were lost or stood still for no reason of ours."""
        data = _frame(job, self._seconds)
        with self._free:
            # Idle children may all have been killed long ago: only one made for this job tells something about it.
            reply = self._try(data, fresh=False) or self._try(data, fresh=True)
        if reply is None:
            raise UnavailableError("the process that renders chat templates was lost twice; try again")
        if isinstance(reply, Done):
            return reply.text
        if reply.kind == "template":
            raise BrokenTemplateError(reply.message)
        if reply.kind == "limit":
            raise LimitError(f"chat_template: {reply.message}; it was stopped", "chat_template")
        raise RequestError(reply.message, reply.param)

    def _try(self, data: bytes, fresh: bool) -> Done | Refused | None:
        """One child's answer. None if something else than this job ended it. fresh: not one that was idle."""
        with self._lock:
            cell = self._idle.pop() if self._idle and not fresh else None
        cell = cell or _Cell()
        reply: Done | Refused | None = None
        try:
            reply = cell.ask(data, self._seconds)
        except ChildTimeoutError:
            cell.end()
            raise _stood_still() from None
        except ChildGoneError as e:
            cell.end()
            reply = _verdict(e.status, self._seconds)
        if reply is not None and not reply.last:
            self._keep(cell)
        else:
            cell.end()
            if reply is not None:
                self.prepare()
        return reply

    def _keep(self, cell: _Cell) -> None:
        with self._lock:
            self._idle.append(cell)

    def pids(self) -> list[int]:
        """Of the idle children."""
        with self._lock:
            return [c.pid for c in self._idle]

    def close(self) -> None:
        """End the idle children. A later `run` starts new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for cell in idle:
            cell.end()


class _Cell:
    """One child. Used by one thread at a time."""

    def __init__(self) -> None:
        self._child = processes.Child("thalweg.template.cell")
        self._decoder: msgspec.msgpack.Decoder[Done | Refused] = msgspec.msgpack.Decoder(Done | Refused)
        self._started = False
        self.pid = self._child.pid

    def ask(self, data: bytes, seconds: float) -> Done | Refused:
        patience = GRACE_SECONDS if self._started else START_SECONDS
        until = time.monotonic() + patience + WALL * (2 * _allowance(len(data)) + seconds)
        self._child.write(data, until)
        (size,) = HEADER.unpack(self._child.read(HEADER.size, until))
        if size > MAX_FRAME:
            raise ChildGoneError(self._child.kill())
        body = self._child.read(size, until)
        self._started = True
        return self._decoder.decode(body)

    def end(self) -> None:
        self._child.kill()


def _allowance(size: int) -> float:
    """Seconds for messages of this many bytes: the time limit is for templates, not for long conversations."""
    return size / BYTES_PER_SECOND


def _frame(job: Job, seconds: float) -> bytes:
    """The job with limits in proportion to its size. RequestError for values that are not JSON."""
    try:
        data = frame(job)
        limits = Limits(
            seconds=seconds + _allowance(len(data)),
            wall=WALL * (seconds + _allowance(len(data))),
            memory=MEMORY + MEMORY_PER_BYTE * len(data),
            output=OUTPUT + 2 * len(data),
        )
        return frame(msgspec.structs.replace(job, limits=limits))
    except UnicodeEncodeError as e:
        raise RequestError(f"messages: not valid Unicode text: {e}; remove the lone surrogate", "messages") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise RequestError(f"messages: a chat template takes JSON values of moderate size and depth: {e}", "messages") from None


def _too_long(seconds: float) -> Refused:
    return Refused("limit", f"took longer than {seconds:g} seconds", last=True)


def _stood_still() -> UnavailableError:
    """Not tried again: this request has waited long enough."""
    return UnavailableError("the process that renders chat templates stood still; try again")


def _verdict(status: int, seconds: float) -> Refused | None:
    """What an exit status says about the job. The kernel sends SIGPROF when its processor time is exhausted, and
    SIGALRM when it had time but did not get it. A crash is the template's doing."""
    if status == -signal.SIGALRM:
        raise _stood_still()
    if status == -signal.SIGPROF:
        return _too_long(seconds)
    crashes: tuple[int, ...] = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE)
    if status in crashes:
        return Refused("limit", "crashed its process", last=True)
    return None
