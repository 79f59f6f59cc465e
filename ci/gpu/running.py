"""Running one part of `ci/gpu/run` within a time limit, and gathering what it left behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import tarfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts import ROOT, Part

GRACE = 8.0
"""Seconds between asking a part to end, so that it writes what it knows, and ending it."""
SECONDS = "PART_SECONDS"
"""Environment variable that tells a part how long it has: one that shares its time out among several things does so."""
NOT_HERE = 77
"""Exit status of a part that this machine cannot run, and that says why in its figures."""
LOG = 1 << 20
"""Bytes of a log that an archive keeps, the last ones."""


@dataclass(frozen=True, slots=True)
class Clock:
    """started: as time.monotonic said. budget and reserve in seconds."""

    started: float
    budget: float
    reserve: float

    def left(self) -> float:
        return self.budget - self.reserve - (time.monotonic() - self.started)


def execute(part: Part, work: Path, limit: float, have: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Run one part; its whole output goes to a log of its name. have: an earlier report of it, whose figures it keeps. Exit
    124: it did not end in time, and was ended."""
    words = list(part.words)
    if have is not None:
        file = work / f"{part.name.replace(' ', '-')}.have.json"
        file.write_text(json.dumps(have))
        words.append(f"--have={file}")
    log = work / f"{part.name.replace(' ', '-')}.log"
    print(f"== {part.name}, at most {limit:.0f} s: {' '.join(words)}", flush=True)
    start = time.monotonic()
    with log.open("w") as f:
        process = subprocess.Popen(
            words, cwd=ROOT, stdout=f, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", SECONDS: f"{max(limit - GRACE, limit / 2):.0f}", **part.env},
            preexec_fn=_interruptible,
        )  # fmt: skip
        try:
            code = process.wait(max(limit - GRACE, limit / 2))
        except subprocess.TimeoutExpired:
            end(process, min(GRACE, limit / 2))
            code = 124
        except BaseException:
            end(process, 0)
            raise
    took = time.monotonic() - start
    state = {0: "passed", 124: "killed", NOT_HERE: "not here"}.get(code, "failed")
    print(f"   {state} (exit {code}), {took:.0f} s", flush=True)
    tail = log.read_text(errors="replace").splitlines()[-12:] if state in ("failed", "killed") else []
    if tail:
        print("   " + "\n   ".join(line[:300] for line in tail), flush=True)
    return {"state": state, "exit": code, "seconds": round(took, 1), "log": log.name}


def _interruptible() -> None:
    """In the part's process: what runs behind nohup, or in a script's background, was told to ignore interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def end(process: subprocess.Popen[Any], grace: float) -> None:
    """Interrupt a part, so that it may write what it knows; then end it, and all that it started."""
    if grace:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the group outlives its leader
    process.wait()


def results(part: Part) -> dict[str, Any]:
    """What the part wrote, as far as it did: figures by name, and what else its report says ("about"); evidence; counts of
    tests."""
    found: dict[str, Any] = {}
    for name, file in (("figures", part.figures), ("evidence", part.evidence)):
        if file is not None and file.is_file():
            with suppress(ValueError):  # ended while it wrote
                found[name] = json.loads(file.read_text())
    report = found.get("figures")
    if isinstance(report, dict) and isinstance(report.get("figures"), dict):
        found["figures"] = report["figures"]
        found["about"] = {k: v for k, v in report.items() if k != "figures"}
    if part.results is not None and part.results.is_file():
        with suppress(ET.ParseError):
            found["figures"] = counts(part.results)
    return found


def counts(file: Path, names: int = 30) -> dict[str, Any]:
    """Of a JUnit report: tests, and the names of those that failed, each with the first line of why."""
    suites = list(ET.parse(file).getroot().iter("testsuite"))
    total = {k: sum(int(s.get(k, 0)) for s in suites) for k in ("tests", "failures", "errors", "skipped")}
    failed = []
    for case in ET.parse(file).getroot().iter("testcase"):
        why = case.find("failure") if case.find("failure") is not None else case.find("error")
        if why is not None:
            message = (why.get("message") or "").splitlines()
            failed.append(f"{case.get('name')}: {message[0][:160] if message else ''}")
    wrong = total["failures"] + total["errors"]
    return {
        "passed": total["tests"] - wrong - total["skipped"], "failed": wrong, "skipped": total["skipped"],
        "failures": failed[:names],
    }  # fmt: skip


def archive(work: Path) -> bytes:
    """Every file of the folder, logs from their end only if they are long, as tar.gz."""
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w:gz") as tar:
        for file in sorted(p for p in work.rglob("*") if p.is_file()):
            data = file.read_bytes()
            if file.suffix == ".log" and len(data) > LOG:
                data = b"... (the beginning is left out)\n" + data[-LOG:]
            info = tarfile.TarInfo(f"results/{file.relative_to(work)}")
            info.size, info.mtime = len(data), int(file.stat().st_mtime)
            tar.addfile(info, io.BytesIO(data))
    return result.getvalue()


def replace(path: Path, data: bytes) -> None:
    """Write the file whole or not at all."""
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(data)
    beside.replace(path)
