"""A `thalweg serve` of the rig's own: started, watched and ended by pid; nothing of it outlives its `with` block."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from chaosrig import proc
from chaosrig.http import Answer, ask
from chaosrig.table import RowFailedError

ENGINE = "thalweg.engine.main"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Server:
    """flags: of `thalweg serve`, with _ for -, and its model; a value of True is a bare flag, a list several words.
    knobs: of the hash model (seconds).

    The process leads a session, so whatever it starts can be told from other processes; its TMPDIR is its own, so whatever it
    leaves behind can be found.
    """

    def __init__(
        self,
        *,
        knobs: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        descriptors: int | None = None,
        port: int | None = None,
        tmp: Path | None = None,
        **flags: Any,
    ) -> None:
        self.port = port or free_port()
        self._own_tmp = tmp is None
        self.tmp = tmp or Path(tempfile.mkdtemp(prefix="chaos-"))
        self.logfile = Path(tempfile.mkstemp(prefix="chaos-log-")[1])
        self._descriptors = descriptors
        self._env = env or {}
        device = flags.pop("device", "null")
        model = [flags.pop("model")] if "model" in flags else []
        self._command = [sys.executable, "-m", "thalweg", "serve", *model, "--device", device, "--port", str(self.port)]
        if device == "null":
            self._command += ["--additional-config", json.dumps(knobs or {})]
        for name, value in flags.items():
            words = [] if value is True else value if isinstance(value, list) else [str(value)]
            self._command += [f"--{name.replace('_', '-')}", *words]
        self.process: subprocess.Popen[bytes] | None = None

    # ------------------------------------------------------------------ life

    def launch(self) -> None:
        """Start it and return at once."""
        limits = ["sh", "-c", f'ulimit -n {self._descriptors}; exec "$@"', "sh"] if self._descriptors else []
        with self.logfile.open("ab") as log:
            self.process = subprocess.Popen(
                [*limits, *self._command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.tmp), **self._env},
            )  # fmt: skip
        self.started = time.monotonic()

    async def ready(self, seconds: float = 40.0) -> float:
        """Wait until /readyz says 200; seconds since the start. RowFailedError with its last words otherwise."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process is None or self.process.poll() is not None:
                raise RowFailedError(f"the server did not start: {self.last_words()}")
            if (await ask(self.port, "GET", "/readyz", timeout=2.0)).status == 200:
                return time.monotonic() - self.started
            await asyncio.sleep(0.02)
        raise RowFailedError(f"the server was not ready within {seconds:g} s: {self.last_words()}")

    async def __aenter__(self) -> Server:
        self.launch()
        try:
            await self.ready()
        except BaseException:
            self.end()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Everything it started is gone afterwards."""
        self.kill_all()
        if self.process is not None:
            self.process.wait()
        if self._own_tmp:
            shutil.rmtree(self.tmp, ignore_errors=True)
        self.logfile.unlink(missing_ok=True)

    def kill_all(self) -> None:
        """SIGKILL to every process of its session, and to those they start meanwhile."""
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process is not None:
                self.process.poll()
            time.sleep(0.005)

    async def exit(self, seconds: float) -> int | None:
        """Its exit status; None if it still runs after that long."""
        assert self.process is not None
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            await asyncio.sleep(0.005)
        return self.process.returncode

    # ------------------------------------------------------------------ looking at it

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def processes(self) -> list[int]:
        return [] if self.process is None else proc.in_session(self.process.pid)

    async def remaining(self, seconds: float = 30.0) -> list[int]:
        """Processes that are still there this long after its end. A child notices the end once it runs, and on a busy machine
        one that has just been started takes seconds to."""
        end = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        return left

    def engine_pid(self) -> int | None:
        """The live engine process, once it is one (not yet between fork and exec). The oldest: another may stand by."""
        engines = (p for p in self.processes() if p != self.pid and ENGINE in proc.cmdline(p) and proc.alive(p))
        return min(engines, key=proc.started, default=None)

    async def next_engine(self, old: int | None, seconds: float = 20.0) -> int:
        """Wait for an engine process other than `old`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid = self.engine_pid()
            if pid is not None and pid != old:
                return pid
            if self.process is not None and self.process.poll() is not None:
                raise RowFailedError(f"the server ended (status {self.process.returncode}) instead of restarting its engine")
            await asyncio.sleep(0.01)
        raise RowFailedError(f"no new engine process within {seconds:g} s")

    async def stands_by(self, seconds: float = 30.0) -> None:
        """Wait until a second engine process has loaded its code and waits: it uses no more processor time."""
        end, before = time.monotonic() + seconds, (0, -1.0)
        while time.monotonic() < end:
            engines = [p for p in self.processes() if p != self.pid and ENGINE in proc.cmdline(p) and proc.alive(p)]
            latest = max(engines, key=proc.started, default=0)
            now = (latest, proc.sample(latest).cpu)
            if len(engines) > 1 and now == before:
                return
            before = now
            await asyncio.sleep(1.0)
        raise RowFailedError(f"no engine process stands by within {seconds:g} s")

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def log(self) -> str:
        return self.logfile.read_text(errors="replace")

    def last_words(self, lines: int = 2) -> str:
        return " | ".join([line for line in self.log().splitlines() if line.strip()][-lines:]) or "(no words)"

    def left_behind(self) -> list[str]:
        """Files in its TMPDIR."""
        return sorted(str(p.relative_to(self.tmp)) for p in self.tmp.rglob("*"))

    async def gauges(self, headers: dict[str, str] | None = None) -> dict[str, float]:
        """{"running", "waiting", "cache"} at this moment, which /metrics tells once a second."""
        answer: Answer = await ask(self.port, "GET", "/page/state", headers=headers)
        if answer.status != 200:
            raise RowFailedError(f"/page/state: status {answer.status} {answer.error}")
        told = answer.json()["gauges"] or {}
        return {name: round(told.get(name, 0.0), 6) for name in ("running", "waiting", "cache")}

    async def idle(self, seconds: float = 5.0) -> dict[str, float]:
        """What is still open or held when nothing should be, after at most that long. cache: the part that is in use."""
        end = time.monotonic() + seconds
        while True:
            open_now = await self.gauges()
            if not any(open_now.values()) or time.monotonic() > end:
                return open_now
            await asyncio.sleep(0.02)


class Probing:
    """Health routes asked from a process of its own while the block runs; afterwards `seen` has every answer."""

    def __init__(self, port: int, *paths: str, interval: float = 0.02) -> None:
        self._command = [sys.executable, "-S", str(Path(__file__).with_name("probe.py")), str(port), str(interval), *paths]
        self.seen: list[tuple[str, float, float, int]] = []

    async def __aenter__(self) -> Probing:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        await asyncio.sleep(0.1)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        try:
            said, _ = await asyncio.to_thread(self._process.communicate, b"", 20)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        self.seen = [tuple(entry) for entry in json.loads(said)]

    def seconds(self, path: str | None = None, status: int | None = 200) -> list[float]:
        return [t for p, _, t, s in self.seen if (path is None or p == path) and (status is None or s == status)]

    def failures(self) -> list[str]:
        return [f"{p} {s} after {t:.3f} s" for p, _, t, s in self.seen if s != 200]
