"""A child process that does jobs it does not trust: length-prefixed frames on stdin and stdout, one job at a time.

It opens no file once it runs, starts no process, and is killed by the kernel at its deadlines. Memory beyond a job's
limit is refused to it. `host.cells` is the other side. Knows nothing of the jobs.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

HEADER = struct.Struct("!I")
MAX_FRAME = 256 << 20
"""Bytes of one frame. A longer one is not sent and not read."""
FELL = 1 << 31
"""Bit of a header without a body: a signal ended the fork that did the job. Its number is in the other bits."""
AGAIN = 3
"""Exit status of a fork that retires. Another replaces it."""
PARENT_SECONDS = 2.0
"""Seconds between looks of an idle process whether its parent is still there. Its pipe tells sooner, unless it was
inherited."""


class TaskReply(Protocol):
    """An answer, which says whether this process ends with it."""

    @property
    def last(self) -> bool: ...


Job = TypeVar("Job")
Reply = TypeVar("Reply", bound=TaskReply)


class ConfinedProcess:
    """This process, as one that does jobs. Make it when everything is imported that a job may need."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._statm = _open_statm()
        self._hard_memory = resource.getrlimit(resource.RLIMIT_AS)[1]
        self.settle()

    def settle(self) -> None:
        """Memory in use by now is the idle process's own."""
        self._idle_bytes = self._address_space_bytes()

    def grown(self) -> int:
        """Bytes in use beyond those of the idle process."""
        return self._address_space_bytes() - self._idle_bytes

    def confine(self) -> None:
        """No file, no process, no core dump from here on."""
        for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGIO):  # each ends the process
            signal.signal(number, signal.SIG_DFL)
        _end_with_input(False)  # a fork before this one may have ended in the middle of a job
        fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and then closes the pipe
        for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE):
            resource.setrlimit(limit, (0, 0))

    def serve(
        self, decode: Callable[[bytes], Job], answer: Callable[[Job], Reply], frame: Callable[[Reply], bytes], retired: int = 0
    ) -> int:
        """Confine the process and answer jobs, one by one, until none come or an answer is the last. Returns its exit status:
        0, `retired` after a last answer, or 1 where the parent is gone. A job's bytes are let go before it is answered."""
        self.confine()
        try:
            while (body := self.next()) is not None:
                job = decode(body)
                del body
                reply = answer(job)
                del job
                write(frame(reply))
                if reply.last:
                    return retired
        except OSError:  # the parent is gone
            return 1
        return 0

    @contextmanager
    def limit(self, seconds: float, wall: float, memory: int) -> Iterator[None]:
        """Limits of a job. The kernel ends this process after `seconds` of processor time or `wall` seconds of the clock.
        memory: bytes beyond those in use now. An allocation over the limit fails."""
        self.limit_memory(memory)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, wall)
        _end_with_input(True)
        try:
            yield
        finally:
            _end_with_input(False)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.limit_memory(None)

    def limit_memory(self, more: int | None) -> None:
        """Address space over that in use now. None: as much as there is."""
        if self._statm is not None:
            most = self._hard_memory
            if more is not None:
                requested = self._address_space_bytes() + more
                most = requested if most == resource.RLIM_INFINITY else min(most, requested)
            resource.setrlimit(resource.RLIMIT_AS, (most, self._hard_memory))

    def _address_space_bytes(self) -> int:
        """Bytes of address space in use. 0 where the system does not tell."""
        return 0 if self._statm is None else int(os.pread(self._statm, 64, 0).split()[0]) * resource.getpagesize()

    def next(self) -> bytes | None:
        """The next frame's body. None when there are no more."""
        came = False
        while not came:
            came = bool(select.select([0], [], [], PARENT_SECONDS)[0])
            if os.getppid() != self._parent:
                return None
        head = _read(HEADER.size)
        return None if head is None else _read(HEADER.unpack(head)[0])


def frame_body(body: bytes) -> bytes:
    """Header and body. ValueError if they are too long."""
    if len(body) > MAX_FRAME:
        raise ValueError(f"{len(body)} bytes; the limit is {MAX_FRAME}")
    return HEADER.pack(len(body)) + body


def write(data: bytes) -> None:
    """To the parent. OSError if it is gone."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _read(n: int) -> bytes | None:
    out = bytearray()
    while len(out) < n:
        piece = os.read(0, min(n - len(out), 1 << 20))
        if not piece:
            return None
        out += piece
    return bytes(out)


def _open_statm() -> int | None:
    """An open file with this process's memory use. None where the system has none: then only time and output are limited."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return None


def _end_with_input(on: bool) -> None:
    """Have the kernel end this process if its input is closed while it is too busy to look: the parent is gone, then."""
    flags = fcntl.fcntl(0, fcntl.F_GETFL)
    fcntl.fcntl(0, fcntl.F_SETFL, flags | fcntl.FASYNC if on else flags & ~fcntl.FASYNC)
