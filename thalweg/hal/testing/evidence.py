"""What a run of the kit has shown, kernel by kernel, as a file: the support matrix is made of such files, never typed.

    pytest --pyargs thalweg.hal.testing --platform=NAME --evidence=FILE [--evidence-level LEVEL] [--evidence-for A,B]

level: how far a kernel was taken: executed (on the device), hosted (this platform's code, on a processor in the device's
place), interpreted, compiled, reference. for: the platforms these kernels serve, by default the one under test.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LEVELS = ("executed", "hosted", "interpreted", "compiled", "reference")
"""Best first."""
Cells = dict[str, dict[str, dict[str, int]]]
"""op -> kernel -> {"passed": cases, "failed": cases, "refused": cases}"""


def note(cells: Cells, params: Mapping[str, Any], outcome: str) -> None:
    """Count one finished test. params: of the test; those without a kernel tell nothing here."""
    if params.get("case") is not None:
        op, _, _, kernel = params["case"]
        name, which = op.name, kernel.name if kernel else "reference"
    elif params.get("attention") is not None:
        name, which = "attention", params["attention"].name
    else:
        return
    word = {"passed": "passed", "failed": "failed", "skipped": "refused"}[outcome]
    counts = cells.setdefault(name, {}).setdefault(which, {"passed": 0, "failed": 0, "refused": 0})
    counts[word] += 1


def write(path: Path, cells: Cells, level: str, platforms: list[str]) -> None:
    if level not in LEVELS:
        raise ValueError(f"--evidence-level: {level!r} is none of {', '.join(LEVELS)}")
    report = {"level": level, "platforms": sorted(platforms), "cells": cells}
    path.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
