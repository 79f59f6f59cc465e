"""What a row reports, and the table of all rows. Knows no server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


class RowFailedError(Exception):
    """A row could not be carried through; the words say why. It counts as a failure, never as a row left out."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value beside its target."""

    row: str
    figure: str
    target: str
    value: Any
    ok: bool
    n: int
    note: str = ""
    seed: int = 0
    measured: bool = False
    """A time, a size or a rate, which depends on the machine and what else it does; else a promise that holds anywhere."""


def at_most(row: str, figure: str, limit: float, value: float, n: int, unit: str = "", note: str = "") -> Figure:
    return Figure(row, figure, f"<= {limit:g}{unit}", _round(value), value <= limit, n, note, measured=True)


def at_least(row: str, figure: str, limit: float, value: float, n: int, unit: str = "", note: str = "") -> Figure:
    return Figure(row, figure, f">= {limit:g}{unit}", _round(value), value >= limit, n, note, measured=True)


def none_of(row: str, figure: str, bad: Sequence[Any], n: int, note: str = "") -> Figure:
    """A count that must be 0; the first offenders are told."""
    words = "; ".join(str(b) for b in bad[:3])
    return Figure(row, figure, "0", len(bad), not bad, n, (note + " " + words).strip()[:600])


def exactly(row: str, figure: str, wanted: Any, value: Any, n: int, note: str = "") -> Figure:
    return Figure(row, figure, str(wanted), value, value == wanted, n, note)


def percentile(values: Sequence[float], p: float) -> float:
    """The value that p percent do not exceed; infinite without values, so that nothing measured never passes."""
    if not values:
        return float("inf")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(p / 100 * (len(ordered) - 1)))]


def _round(value: float) -> float | int:
    return value if isinstance(value, int) else float(f"{value:.4g}")


def render(figures: Sequence[Figure]) -> str:
    head = ("row", "figure", "target", "value", "n", "seed", "")
    lines = [(f.row, f.figure, f.target, str(f.value), str(f.n), str(f.seed), "pass" if f.ok else "FAIL") for f in figures]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    out = []
    for line, figure in zip([head, *lines], [None, *figures], strict=True):
        out.append("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip())
        if figure is not None and not figure.ok and figure.note:
            out.append(f"      {figure.note}")
    failed = sorted({f.row for f in figures if not f.ok})
    rows = len({f.row for f in figures})
    out.append(f"{rows} rows, {rows - len(failed)} pass" + (f", {len(failed)} FAIL: {' '.join(failed)}" if failed else ""))
    return "\n".join(out)


def as_json(figures: Sequence[Figure], facts: dict[str, Any]) -> str:
    """Infinite values become the string "inf", so that any reader takes it."""
    rows = [{k: "inf" if v == float("inf") else v for k, v in asdict(f).items()} for f in figures]
    return json.dumps({**facts, "figures": rows}, indent=1)
