"""The one module that starts processes: the engine (`Process`), and small helpers that talk over two pipes (`Child`).

Every process is `python -m` a module of ours, or a fork of a helper. The only other program is one a user names on the command
line (`become`). This module knows nothing about the work of a process.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import thalweg
from thalweg.host import envs
from thalweg.host.confined import AGAIN, FELL, HEADER, write

STOPPED_SECONDS = 2.0
"""Seconds a child with a job may be stopped (SIGSTOP, a debugger) before it is abandoned."""
LOOK_SECONDS = 0.25
"""Between looks at a child that has not answered yet."""
POLL_SECONDS = 0.005
"""Between looks at an ending process."""


class Process:
    """`python -m module words`, with this process's output, its environment less the API keys, no input, and of its other
    descriptors those in `inherit`. Whoever makes one ends it. Needs no event loop to be made."""

    def __init__(self, module: str, *words: str, inherit: Sequence[int] = ()) -> None:
        command = [sys.executable, "-m", module, *words]
        self._popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=tuple(inherit), env=envs.without_api_keys())

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, -N if signal N ended it, None while it runs."""
        return self._popen.poll()

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        self._popen.kill()

    def end(self) -> None:
        """SIGKILL, and wait until it is gone, which is soon."""
        self._popen.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(1.0)

    def wait_for(self, seconds: float) -> int | None:
        """The exit status. None if it still runs after so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(seconds)
        return None

    async def wait(self) -> None:
        """Until it has ended."""
        import asyncio  # slow to import: async callers have loaded it already, others must not

        while self.returncode is None:
            await asyncio.sleep(POLL_SECONDS)


class CommandProcess:
    """A command that a user named, or one of ours, in a separate process group. It prints to `log`, where this process does, or
    nowhere. The caller ends it."""

    def __init__(self, words: Sequence[str], log: Path | None = None, shown: bool = False) -> None:
        """FileNotFoundError if there is no such program."""
        with contextlib.ExitStack() as opened:
            out = opened.enter_context(log.open("wb")) if log is not None else None if shown else subprocess.DEVNULL
            self._popen = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit status. None while it runs."""
        return self._popen.poll()

    def wait(self) -> int:
        """Until it has ended by itself: its exit status."""
        return self._popen.wait()

    def end(self, seconds: float = 60.0) -> None:
        """SIGTERM to the group, SIGKILL after so long, and wait until it is gone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(seconds)
                return


class ChildTimeoutError(Exception):
    """The child did not read or answer in time. It is still there: kill it."""


class ChildStoppedError(ChildTimeoutError):
    """The child is stopped, and was for STOPPED_SECONDS."""


class ChildGoneError(Exception):
    """The child has ended. `status` is its exit status. -N: killed by signal N."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"the child ended with status {status}")


class Child:
    """One helper and its pipes. It has no other descriptor of ours and no environment but the import path. It must end when
    its input does: so it ends with this object, or with this process, however that ends. For one thread at a time."""

    def __init__(self, module: str) -> None:
        command = [sys.executable, "-s", "-S", "-X", "utf8", "-m", module]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, env=_environment()
        )
        assert self._process.stdin
        assert self._process.stdout
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self._end = weakref.finalize(self, _end, self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, data: bytes, until: float) -> None:
        """Write all data, by time.monotonic() `until`. ChildTimeoutError, ChildStoppedError, ChildGoneError."""
        view = memoryview(data)
        while view:
            self._wait(self._to, select.POLLOUT, until)
            try:
                view = view[os.write(self._to, view) :]
            except BlockingIOError:
                continue
            except OSError:
                raise ChildGoneError(self.kill()) from None

    def read(self, n: int, until: float) -> bytes:
        """Exactly n bytes, by time.monotonic() `until`. ChildTimeoutError, ChildStoppedError, ChildGoneError."""
        out = bytearray()
        while len(out) < n:
            self._wait(self._from, select.POLLIN, until)
            try:
                piece = os.read(self._from, min(n - len(out), 1 << 20))
            except BlockingIOError:
                continue
            if not piece:
                raise ChildGoneError(self._reap())
            out += piece
        return bytes(out)

    def _wait(self, fd: int, event: int, until: float) -> None:
        poll, since = select.poll(), math.inf
        poll.register(fd, event)
        while not poll.poll(max(0.0, min(LOOK_SECONDS, until - time.monotonic())) * 1000):
            now = time.monotonic()
            if now >= until:
                raise ChildTimeoutError
            since = min(since, now) if _is_stopped(self.pid) else math.inf
            if now - since >= STOPPED_SECONDS:
                raise ChildStoppedError

    def _reap(self) -> int:
        """The status of a child that has closed its output. A child that lingers is killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(1.0)
        return self.kill()

    def kill(self) -> int:
        """End it now. Its exit status."""
        self._end()
        return int(self._process.returncode)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill running processes, reap the child, close the pipes."""
    if process.poll() is None:
        for fork in _forks(process.pid):  # a stopped one would not see its input close
            with contextlib.suppress(OSError):
                os.kill(fork, signal.SIGKILL)
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _is_stopped(pid: int) -> bool:
    """Is the process or one of its forks stopped? False where the system does not say."""
    return any(_state(each) in ("T", "t") for each in (pid, *_forks(pid)))


def _state(pid: int) -> str:
    """The letter that proc(5) has for it. "": unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _forks(pid: int) -> list[int]:
    """Processes that it has started. None where the system does not tell."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _environment() -> dict[str, str]:
    """The import path of this process, and nothing else."""
    places = [p for p in sys.path if os.path.isabs(p)]
    return {"PYTHONPATH": os.pathsep.join([*places, str(Path(thalweg.__file__).parents[1])])}


def in_forks(work: Callable[[], int]) -> int:
    """Run `work` in a fork of this process, and in another whenever one is ended or retires: all that was built here is built
    there. Returns an exit status when a fork ends by itself, as it does with its input, or the parent is gone."""
    while True:
        pid = os.fork()
        if not pid:
            status = 1
            try:
                status = work()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status in (-signal.SIGIO, -signal.SIGPIPE) or (status >= 0 and status != AGAIN):
            return max(status, 0)
        if status < 0:
            try:
                write(HEADER.pack(FELL | -status))
            except OSError:
                return 1


def become(command: list[str], environment: dict[str, str]) -> NoReturn:
    """This process goes on as another program. FileNotFoundError if it does not exist."""
    found = shutil.which(command[0], path=environment.get("PATH"))
    if found is None:
        raise FileNotFoundError(command[0])
    sys.stdout.flush()
    os.execve(found, command, environment)
