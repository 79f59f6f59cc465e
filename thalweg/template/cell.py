"""The process in which chat templates are rendered: `python -m thalweg.template.cell`, jobs on stdin, answers on
stdout.

It opens no file once it runs, starts no process, and is killed by the kernel at its deadlines. Memory beyond its
limit is refused to it. A job too big for it leaves an exhausted process behind, which says so in its answer and ends.
"""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import select
import signal
import sys
from datetime import datetime

import msgspec

from thalweg.errors import CheckpointError, RequestError
from thalweg.template.sandbox import ChatTemplate, OutputLimitError, load_all
from thalweg.template.wire import HEADER, Done, Job, Refused, frame

KEPT_TEMPLATES = 4
"""Compiled templates kept for the next job."""
KEPT_BYTES = 48 << 20
"""Bytes of growth after which a process retires. Its heap is fragmented, and counts against the next job."""
PARENT_SECONDS = 2.0
"""Seconds between looks of an idle process whether its parent is still there. Its pipe tells sooner, unless it was
inherited."""


class Cell:
    """Renders jobs one by one. `run` returns when the input ends."""

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(Job)
        self._templates: dict[str, ChatTemplate] = {}
        self._parent = os.getppid()
        load_all()
        self._statm = _open_statm()
        self._idle_bytes = self._mapped()
        self._hard_memory = resource.getrlimit(resource.RLIMIT_AS)[1]

    def run(self) -> None:
        while (body := self._next()) is not None:
            job = self._decoder.decode(body)
            del body
            reply = self._answer(job)
            del job
            _write(frame(reply))
            if reply.last:
                return

    def _answer(self, job: Job) -> Done | Refused:
        self._limit_memory(job.limits.memory)
        signal.setitimer(signal.ITIMER_PROF, job.limits.seconds)
        signal.setitimer(signal.ITIMER_REAL, job.limits.wall)
        _end_with_input(True)
        try:
            text = self._render(job)
        except MemoryError:
            self._limit_memory(None)
            return Refused("limit", f"used more than {job.limits.memory >> 20} MiB of memory", last=True)
        except OutputLimitError:
            return Refused("limit", f"wrote more than {job.limits.output} characters")
        except CheckpointError as e:
            return Refused("template", str(e))
        except RequestError as e:
            return Refused("request", str(e), e.param)
        finally:
            _end_with_input(False)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._limit_memory(None)
        return Done(text, last=self._mapped() - self._idle_bytes > KEPT_BYTES)

    def _render(self, job: Job) -> str:
        template = self._templates.get(job.source)
        if template is None or template.variables != job.variables:
            template = self._templates[job.source] = ChatTemplate(job.source, job.variables)
            while len(self._templates) > KEPT_TEMPLATES:
                del self._templates[next(iter(self._templates))]
        if job.messages is None:
            return ""
        return template.fill(
            job.messages,
            job.tools,
            job.add_generation_prompt,
            job.continue_final_message,
            content_format=job.content_format,
            kwargs=job.kwargs,
            now=datetime.fromisoformat(job.now),
            most=job.limits.output,
        )

    def _limit_memory(self, more: int | None) -> None:
        """Address space over that in use now. None: as much as there is."""
        if self._statm is not None:
            most = self._hard_memory
            if more is not None:
                asked = self._mapped() + more
                most = asked if most == resource.RLIM_INFINITY else min(most, asked)
            resource.setrlimit(resource.RLIMIT_AS, (most, self._hard_memory))

    def _mapped(self) -> int:
        """Bytes of address space in use. 0 where the system does not tell."""
        return 0 if self._statm is None else int(os.pread(self._statm, 64, 0).split()[0]) * resource.getpagesize()

    def _next(self) -> bytes | None:
        """The next job's body. None when there are no more."""
        while not select.select([0], [], [], PARENT_SECONDS)[0]:
            if os.getppid() != self._parent:
                return None
        head = _read(HEADER.size)
        return None if head is None else _read(HEADER.unpack(head)[0])


def _read(n: int) -> bytes | None:
    out = bytearray()
    while len(out) < n:
        piece = os.read(0, min(n - len(out), 1 << 20))
        if not piece:
            return None
        out += piece
    return bytes(out)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _open_statm() -> int | None:
    """What tells how much memory this process uses. None where there is none: then only time and output are limited."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return None


def _end_with_input(on: bool) -> None:
    """Have the kernel end this process if its input is closed while it is too busy to look: the parent is gone, then."""
    flags = fcntl.fcntl(0, fcntl.F_GETFL)
    fcntl.fcntl(0, fcntl.F_SETFL, flags | fcntl.FASYNC if on else flags & ~fcntl.FASYNC)


def _confine() -> None:
    """No file, no process, no core dump from here on."""
    for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGIO):  # each ends the process
        signal.signal(number, signal.SIG_DFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and then closes the pipe
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE):
        resource.setrlimit(limit, (0, 0))


def main() -> int:
    cell = Cell()
    _confine()
    gc.freeze()
    try:
        cell.run()
    except OSError:  # the parent is gone
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
