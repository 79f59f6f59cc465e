"""Results of a run of the kit, kernel by kernel, as a file. The support matrix is made of such files, never typed.

    pytest --pyargs thalweg.hal.testing --platform=NAME --evidence=FILE [--evidence-level LEVEL] [--evidence-for A,B] [-n 8]

level: how far a kernel was taken. executed is on the device, hosted is this platform's code on a processor in the
device's place. Others are interpreted, compiled and reference. for: the platforms these kernels serve, by default
the one under test.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LEVELS = ("executed", "hosted", "interpreted", "compiled", "reference")
"""Best first."""
Cells = dict[str, dict[str, dict[str, int]]]
"""op -> kernel -> {"passed": cases, "failed": cases, "refused": cases}"""


PROPERTY = "thalweg.kernel"
"""Name under which a test's report carries (op, kernel), from the process that ran it to the one that counts."""


def kernel_of(params: Mapping[str, Any]) -> tuple[str, str] | None:
    """(op, kernel) that a test of these parameters is about. None: about none."""
    if params.get("case") is not None:
        op, _, _, kernel = params["case"]
        return op.name, kernel.name if kernel else "reference"
    if params.get("attention") is not None:
        return "attention", params["attention"].name
    return None


def note(cells: Cells, what: tuple[str, str], outcome: str) -> None:
    """Count one finished test."""
    op, kernel = what
    word = {"passed": "passed", "failed": "failed", "skipped": "refused"}[outcome]
    cells.setdefault(op, {}).setdefault(kernel, {"passed": 0, "failed": 0, "refused": 0})[word] += 1


class EvidenceCollector:
    """Counts the reports of one run, in the process that gets them: the only one, or the controller of xdist's workers. A test
    fails if its worker dies: the report of its set-up has named its kernel."""

    def __init__(self) -> None:
        self.cells: Cells = {}
        self._about: dict[str, tuple[str, str]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY:
                op, kernel = value
                self._about[report.nodeid] = op, kernel
        what = self._about.get(report.nodeid)
        if what and (report.when == "call" or (report.when != "teardown" and not report.passed)):
            note(self.cells, what, report.outcome)


def merge(files: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One report of several that say the same level and platforms, as of the parts of one run. ValueError if they differ."""
    merged: dict[str, Any] = {}
    for file in files:
        head = {k: file[k] for k in ("level", "platforms")}
        if merged and head != {k: merged[k] for k in head}:
            raise ValueError(f"evidence of {head} does not add to {merged['level']} on {merged['platforms']}")
        cells = merged.setdefault("cells", {})
        merged |= head
        for op, kernels in file["cells"].items():
            for kernel, counts in kernels.items():
                sums = cells.setdefault(op, {}).setdefault(kernel, dict.fromkeys(counts, 0))
                for word, n in counts.items():
                    sums[word] += n
    return merged


def write(path: Path, cells: Cells, level: str, platforms: list[str]) -> None:
    if level not in LEVELS:
        raise ValueError(f"--evidence-level: unknown level {level!r}; supported: {', '.join(LEVELS)}")
    report = {"level": level, "platforms": sorted(platforms), "cells": cells}
    path.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
