"""The support matrix: per op and platform, how far a kernel for it has been taken. Made of the files that runs of the
conformance kit wrote (thalweg/assets/support); nothing here is typed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

FOLDER = Path(__file__).parents[2] / "assets" / "support"
LEVELS = {
    "executed": "run on the device",
    "hosted": "this platform's code and the framework's own operations, run on a processor in the device's place",
    "interpreted": "the kernel's own code, run by its language's interpreter",
    "compiled": "compiled for the device, not run",
    "reference": "only the definition of the op, run on the host",
}
"""Best first."""
FAILS = "FAILS"


def evidence(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Every file, in order of name."""
    return [orjson.loads(p.read_bytes()) for p in sorted(folder.glob("*.json"))]


def cells(files: Sequence[dict[str, Any]]) -> dict[str, dict[str, tuple[str, tuple[str, ...]]]]:
    """op -> platform -> (best level, kernels that reached it). A kernel with a failed case is the cell, whatever else is."""
    out: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {}
    ranks = [FAILS, *LEVELS]
    for file in files:
        for op, kernels in file["cells"].items():
            for name, counts in kernels.items():
                level = _level(file["level"], name, counts)
                if level is None:
                    continue
                for platform in file["platforms"]:
                    row = out.setdefault(op, {})
                    best, names = row.get(platform, (level, ()))
                    if ranks.index(level) < ranks.index(best):
                        best, names = level, ()
                    if level == best:
                        row[platform] = (best, tuple(sorted({*names, name})))
    return out


def _level(level: str, kernel: str, counts: dict[str, int]) -> str | None:
    if counts["failed"]:
        return FAILS
    if not counts["passed"]:
        return None
    return "reference" if kernel == "reference" else level


def markdown(files: Sequence[dict[str, Any]]) -> str:
    """The table, with what its words mean."""
    made = cells(files)
    platforms = sorted({p for row in made.values() for p in row})
    lines = ["| op | " + " | ".join(platforms) + " |", "|" + "---|" * (len(platforms) + 1)]
    for op in sorted(made):
        shown = (f"{made[op][p][0]}: {', '.join(made[op][p][1])}" if p in made[op] else "" for p in platforms)
        lines.append(f"| {op} | " + " | ".join(shown) + " |")
    return "\n".join([*lines, "", *(f"- {level}: {meaning}" for level, meaning in LEVELS.items())]) + "\n"


def page(files: Sequence[dict[str, Any]]) -> str:
    """docs/support.md."""
    return (
        "# Support matrix\n\nGenerated: `thalweg backends --matrix > docs/support.md`. It is made of what runs of the\n"
        "conformance kit wrote (`pytest --pyargs thalweg.hal.testing --platform=NAME "
        "--evidence=thalweg/assets/support/NAME.json`).\n\n" + markdown(files)
    )
