"""Processes of a fleet: started on loopback ports, with a bound on their life, and ended with their children."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

LONGEST = 900
"""Seconds after which a process of a fleet is killed, whatever becomes of this one."""
ENGINE = b"thalweg.engine.main"


class FleetError(Exception):
    """A part of a fleet that did not do its work, with the end of its log."""


def find_ports(count: int) -> list[int]:
    """Free ports of loopback, each other than the others."""
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


def find_engines_in(folder: Path) -> list[int]:
    """Process ids of the engines whose environment names the folder, whoever started them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and ENGINE in _command(int(entry.name)):
            with suppress(OSError):
                if str(folder).encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


class Process:
    """A running program, whose output is in a file."""

    def __init__(self, words: list[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        """The program leads a process group, which `end` kills."""
        timeout = shutil.which("timeout")
        assert timeout is not None, "timeout is a part of coreutils"
        self.words, self.log = words, log
        self._bounded = [timeout, "--foreground", "--signal=KILL", str(LONGEST), *words]
        self._environment = {**os.environ, **(environment or {})}
        self._start()

    def _start(self) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self._bounded, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self._environment, cwd=self.log.parent,
                start_new_session=True,
            )  # fmt: skip

    def wait_for(self, url: str, seconds: float = 120.0) -> None:
        """Until `url` answers with a status below 400. FleetError if the program ends first, or takes longer."""
        self.wait_until(lambda: _answers(url), url, seconds)

    def wait_until(self, done: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not done():
            if self._process.poll() is not None:
                raise FleetError(f"{self.words[0]} ended with {self._process.returncode}: {self.read_end()}")
            if time.monotonic() > end:
                raise FleetError(f"{self.words[0]}: no {what} in {seconds:.0f} s: {self.read_end()}")
            time.sleep(0.1)

    def read_end(self, size: int = 1500) -> str:
        return self.log.read_text(errors="replace")[-size:]

    def find_engines(self) -> list[int]:
        """Process ids of the engines that serve under this program. A standby engine is one of them."""
        return [pid for pid in _descendants(self._process.pid) if ENGINE in _command(pid)]

    def has_engine(self) -> bool:
        return bool(self.find_engines())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the program, those with a group of their own too."""
        for pid in (self._process.pid, *_descendants(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def restart(self) -> None:
        """The same program with the same ports, once this one has ended."""
        self.kill()
        self._start()

    def end(self) -> None:
        """SIGTERM to the program, SIGKILL to its group 10 seconds later."""
        for pid in _children(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the group at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return int(answer.status) < 400
    except (URLError, OSError):
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    except OSError:
        return []


def _descendants(pid: int) -> list[int]:
    return [found for child in _children(pid) for found in (child, *_descendants(child))]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
