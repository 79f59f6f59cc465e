"""`thalweg compile --arch ARCH [MODEL]`: a model's kernels compiled for a device that need not be here.

Processes do the work (`thalweg.engine.worker.cross_compile`). A compiler may end the process it runs in. That costs the
kernel it was at, not the others.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from thalweg.cli import common
from thalweg.config import EngineArgs
from thalweg.engine.planning import checkpoint_config
from thalweg.errors import ConfigError, ThalwegError
from thalweg.hal import discovery
from thalweg.host import processes
from thalweg.options.model import BUNDLED

MODULE = "thalweg.engine.worker.cross_compile"
ENDING = 10.0
"""Seconds that a process may take to end."""


def run(words: list[str]) -> int:
    """0: everything is compiled. 1: something is not, and the report gives the reason."""
    namespace = common.parse("compile", words, _arguments, about="Compile a model's kernels for devices that need not be here.")
    args = common.engine_args(namespace, namespace.model_tag)
    requested = platforms(namespace.arch, namespace.jobs, args.device)
    path = checkpoint_config.find(args)
    reports = []
    for arch, platform in requested:
        report = _CompileRun(
            msgspec.structs.replace(args, model=str(path)), platform, arch, namespace.cache_dir, namespace.jobs
        )
        reports.append(report.go(quiet=namespace.json))
    if namespace.json:
        print(msgspec.json.encode([r.as_json() for r in reports]).decode())
    else:
        for r in reports:
            print(r.words(args.model))
    return 1 if any(r.problems for r in reports) else 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model_tag", nargs="?", metavar="MODEL",
        help=f"directory (its config.json is enough) or hub id (left out: the {BUNDLED} model)",
    )  # fmt: skip
    parser.add_argument("--arch", action="append", default=[], metavar="ARCH", help="for which device; may be given again")
    parser.add_argument("--jobs", type=int, default=_cores(), metavar="N", help="processes at once (default: %(default)s)")
    parser.add_argument("--cache-dir", metavar="DIR", help="folder for compiled kernels (default: the one that serving reads)")
    parser.add_argument("--json", action="store_true", help="print a report as JSON")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def platforms(archs: Sequence[str], jobs: int, device: str) -> list[tuple[str, str]]:
    """(architecture, the platform that compiles for it). ConfigError: no architecture to compile for, or no platform for it."""
    known: dict[str, tuple[str, ...]] = {}
    for name in discovery.names() if device == "auto" else [device]:
        with contextlib.suppress(ThalwegError, ImportError):
            known[name] = discovery.load(name).architectures()
    there = "; ".join(f"{name}: {', '.join(a)}" for name, a in known.items() if a)
    there = f"there are {there}" if there else f"--device {device} compiles nothing ahead of time"
    owners = {arch: name for name, some in known.items() for arch in some}
    problems = [f"--arch: {a!r} is not one that can be compiled for; {there}" for a in archs if a not in owners]
    if not archs:
        problems.append(f"--arch: name at least one device; {there}")
    if jobs < 1:
        problems.append(f"--jobs: {jobs} processes compile nothing; give 1 or more")
    if problems:
        raise ConfigError(*problems)
    return [(a, owners[a]) for a in dict.fromkeys(archs)]


@dataclass(slots=True)
class Report:
    """The outcome of one architecture."""

    arch: str
    cache: str = ""
    kernels: int = 0
    compiled: int = 0
    cached: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {f: getattr(self, f) for f in self.__dataclass_fields__}

    def words(self, model: str) -> str:
        lines = [
            f"{model} for {self.arch}: {self.kernels} kernels, {self.compiled} compiled and {self.cached} there already, "
            f"in {self.seconds:.0f} s; in {self.cache}"
        ]
        return "\n".join(lines + [f"{self.arch}: not compiled: {p}" for p in self.problems])


class _CompileRun:
    """The processes of one architecture, and their messages."""

    def __init__(self, args: EngineArgs, platform: str, arch: str, cache: str | None, jobs: int) -> None:
        self._job: dict[str, Any] = {"args": args, "platform": platform, "arch": arch, "cache": cache, "count": jobs}
        self._jobs, self._report = jobs, Report(arch)
        self._said: queue.SimpleQueue[tuple[int, dict[str, Any] | None]] = queue.SimpleQueue()
        self._running: dict[int, processes.Process] = {}
        self._at: dict[int, tuple[int, str]] = {}
        """(number, name) of the kernel each process is compiling. number -1: its share is done."""

    def go(self, quiet: bool) -> Report:
        start, report = time.monotonic(), self._report
        show = _Progress(report, quiet)
        try:
            for i in range(self._jobs):
                self._start(i, i)
            while self._running:
                i, message = self._said.get()
                if message is None:
                    self._handle_exit(i)
                else:
                    self._handle_message(i, message)
                show.now()
        finally:
            for process in self._running.values():
                process.end()
            show.end()
        report.seconds = time.monotonic() - start
        return report

    def _start(self, i: int, first: int) -> None:
        """first: the number of the first remaining kernel of its share."""
        read, write = os.pipe()
        job = msgspec.json.encode({**self._job, "first": first}).decode()
        try:
            self._running[i] = processes.Process(MODULE, str(write), job, inherit=(write,))
        finally:
            os.close(write)
        threading.Thread(target=self._listen, args=(i, read), daemon=True).start()

    def _listen(self, i: int, fd: int) -> None:
        with os.fdopen(fd, "rb") as lines:
            for line in lines:
                self._said.put((i, msgspec.json.decode(line)))
        self._said.put((i, None))

    def _handle_message(self, i: int, message: dict[str, Any]) -> None:
        report = self._report
        if "error" in message:
            for process in self._running.values():
                process.end()
            raise ConfigError(*message["error"].splitlines())
        if "kernels" in message:
            report.kernels, report.cache = message["kernels"], message["cache"]
        elif "begin" in message:
            self._at[i] = (message["begin"], message["name"])
        elif "end" in message:
            self._at[i] = (-1, "")
        else:
            if "failed" in message:
                report.problems.append(f"{message['name']}: {message['failed']}")
            elif message["cached"]:
                report.cached += 1
            else:
                report.compiled += 1

    def _handle_exit(self, i: int) -> None:
        """Before its share was done its compiler ended it: another goes on with the kernel after that one."""
        process = self._running.pop(i)
        status = _status(process)
        number, name = self._at.pop(i, (None, ""))
        if number is None:
            self._report.problems.append(f"a process ended with status {status} before it compiled anything")
        elif number >= 0:
            self._report.problems.append(f"{name}: its compiler ended the process (status {status})")
            self._start(i, number + self._jobs)


def _status(process: processes.Process) -> int | None:
    """The exit status of a process that closed its pipe. It has ENDING seconds to exit, then it is ended."""
    until = time.monotonic() + ENDING
    while process.returncode is None and time.monotonic() < until:
        time.sleep(processes.POLL_SECONDS)
    process.end()
    return process.returncode


class _Progress:
    """A progress line, overwritten in place. Only on a terminal."""

    def __init__(self, report: Report, quiet: bool) -> None:
        self._report, self._on = report, not quiet and sys.stderr.isatty()
        if not quiet and not self._on:
            print(f"{report.arch}: compiling", file=sys.stderr, flush=True)

    def now(self) -> None:
        r = self._report
        if self._on:
            done = r.compiled + r.cached + len(r.problems)
            print(f"\r{r.arch}: {done} of {r.kernels or '?'} kernels", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._on:
            print(file=sys.stderr)
