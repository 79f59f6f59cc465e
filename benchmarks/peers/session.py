"""One engine's process, from this side: started, asked, watched, ended. The other side is drivers/protocol.py."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import host

TAIL = 3000
"""Characters of an engine's log that go into a failure."""


class PeerError(RuntimeError):
    """An engine did not do as asked; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One call. cores: processors its processes kept busy; others: those that everything else did; stolen: by the host."""

    seconds: float
    tokens: list[list[int]]
    cores: float
    others: float
    stolen: float


class Session:
    """An engine that has been started; `launch` makes one and ends it."""

    def __init__(self, process: subprocess.Popen[str], log: Path, timeout: float, started: float) -> None:
        self._process, self._log, self._timeout, self._started = process, log, timeout, started
        ready = self._read()
        self.load_seconds = time.monotonic() - started
        """From starting the process until it said that it is ready."""
        self.versions: dict[str, str] = ready["versions"]
        self.flags: dict[str, Any] = ready["flags"]
        self._peak = 0

    def ask(self, prompts: Sequence[Sequence[int]], new: int) -> Measured:
        """All prompts at once, exactly `new` tokens each. PeerError if the engine fails, or gives another number of tokens."""
        assert self._process.stdin is not None
        pids = host.tree(self._process.pid)
        before, own, start = host.busy(), host.cpu_seconds(pids), time.monotonic()
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts, "new": new}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("it is gone") from None
        answer = self._read()
        wall = time.monotonic() - start
        own, after = host.cpu_seconds(pids) - own, host.busy()
        self._peak = max(self._peak, host.peak_rss(pids))
        tokens = answer["tokens"]
        lengths = sorted({len(t) for t in tokens})
        if lengths != [new] or len(tokens) != len(prompts):
            raise self._failure(f"{len(tokens)} answers of {lengths} tokens to {len(prompts)} requests for {new}")
        others = max(after.used - before.used - own, 0.0)
        return Measured(answer["seconds"], tokens, own / wall, others / wall, (after.stolen - before.stolen) / wall)

    @property
    def since_start(self) -> float:
        """Seconds since the process was started."""
        return time.monotonic() - self._started

    def memory(self) -> dict[str, float]:
        """MiB: the peak so far, and what is held now."""
        pids = host.tree(self._process.pid)
        peak = max(self._peak, host.peak_rss(pids))
        return {"peak_rss_mib": round(peak / 2**20, 1), "pss_mib": round(host.pss(pids) / 2**20, 1)}

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(self._timeout, _end_group, [self._process])
        timer.daemon = True
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise self._failure(f"it ended, or took longer than {self._timeout:.0f} s")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failure(answer["error"])
        return answer

    def _failure(self, why: str) -> PeerError:
        return PeerError(f"{why}\n{self._log.read_text(errors='replace')[-TAIL:]}")


@contextlib.contextmanager
def launch(
    command: Sequence[str], settings: Mapping[str, Any], env: Mapping[str, str], log: Path, timeout: float
) -> Iterator[Session]:
    """Start a driver and wait until its engine is loaded; at the end its input is closed, which ends it, and what is left
    of it then is killed: at once after a failure. timeout: seconds one answer may take."""
    with log.open("a") as errors:
        started = time.monotonic()
        process = subprocess.Popen(
            [*command, json.dumps(settings)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            env=dict(env), text=True, start_new_session=True,
        )  # fmt: skip
    try:
        yield Session(process, log, timeout, started)
        assert process.stdin is not None
        process.stdin.close()
        _wait(process, 30)
    finally:
        _end_group(process)
        process.wait()


def _wait(process: subprocess.Popen[str], seconds: float) -> None:
    """Until it has ended or the time is up. It is not reaped, so its number still names its group and nothing else."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.returncode is not None or os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            return
        time.sleep(0.01)


def _end_group(process: subprocess.Popen[str]) -> None:
    """The process and those it started: they are a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
