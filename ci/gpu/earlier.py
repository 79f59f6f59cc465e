"""What earlier runs found, figure by figure: which figures a run keeps, and which it only shows.

A figure is kept where the identity of its run is this run's: card, software, kernels. Others stay apart, each with its run and
in what it differs (`identity.compare`).
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import identity
from parts import Part

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "docs" / "evidence" / "device"
DONE = ("passed", "failed", "not here")
"""States of a part that has run to its end."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run's parts, as its summary or its file of the ledger has them. name: says which run, in a table."""

    name: str
    date: str
    identity: Mapping[str, Any] | None
    parts: Mapping[str, Mapping[str, Any]]


@dataclass(slots=True)
class Known:
    """parts: name -> state, figures and the rest, as they are kept. Its "of" names the run of every figure. apart: relation
    -> runs whose figures differ in that."""

    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    apart: dict[str, list[Run]] = field(default_factory=dict)


def find_sources(requested: str, pack: Path | None) -> list[Path]:
    """Files that --resume FILE or --resume auto mean. auto: the ledger, and the summaries that a pack holds."""
    if requested != "auto":
        return [Path(requested)]
    carried = sorted((pack / "summaries").glob("*.json")) if pack else []
    return [*sorted(LEDGER.glob("*.json")), *carried]


def read(file: Path) -> list[Run]:
    """The run that a summary is of, and those that it kept apart. SystemExit in words if it is none."""
    try:
        summary: dict[str, Any] = json.loads(file.read_text())
        parts = {n: dict(p) for n, p in summary["parts"].items()}
        for p in parts.values():
            if p["state"] == "running":  # whoever ended it ended the run too
                p["state"] = "killed"
        result = Run(summary.get("name") or file.name, summary.get("date", ""), summary.get("identity"), parts)
        others = [Run(r["name"], r["date"], r["identity"], r["parts"]) for rs in summary.get("apart", {}).values() for r in rs]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        sys.exit(f"--resume: {file} is no summary of a run: {type(e).__name__}: {e}")
    return [*others, result]


def join(runs: Iterable[Run], now: Mapping[str, Any]) -> Known:
    """What of these runs counts for a run of identity `now`. Of one figure the newest counts."""
    known = Known()
    for run in sorted(runs, key=lambda r: r.date):
        words = identity.compare(run.identity, now)
        if words:
            same = [r for r in known.apart.get(words, []) if r.name == run.name]
            if not same:
                known.apart.setdefault(words, []).append(run)
            continue
        for name, part in run.parts.items():
            if part["state"] in DONE or part.get("figures"):
                known.parts[name] = _merge(known.parts.get(name), part, run)
    return known


def _merge(before: Mapping[str, Any] | None, part: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The part as the newer run has it, with the figures that only the one before has."""
    result = {**part, "run": part.get("run", run.name), "commit": part.get("commit", (run.identity or {}).get("commit"))}
    figures = part.get("figures")
    if not isinstance(figures, Mapping):
        return result
    of = {name: part.get("of", {}).get(name, result["run"]) for name in figures}
    if before and isinstance(before.get("figures"), Mapping) and "evidence" not in part:
        figures = {**before["figures"], **figures}
        of = {**before["of"], **of}
    return {**result, "figures": figures, "of": of}


def is_settled(part: Part, found: Mapping[str, Any] | None, now: Mapping[str, Any]) -> bool:
    """Does this part need no further run? A failure counts for one commit without changes, as another may have repaired it."""
    if not found or found["state"] not in DONE:
        return False
    if found["state"] == "failed" and (now.get("dirty") or not now.get("commit") or found.get("commit") != now["commit"]):
        return False
    return found["state"] == "not here" or set(part.wanted) <= set(found.get("figures") or ())


def carry(part: Part, found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The report that a part goes on from: what it had, without what failed. None: it begins anew."""
    figures = (found or {}).get("figures")
    if not part.resumes or not isinstance(figures, Mapping):
        return None
    kept = {name: f for name, f in figures.items() if not _is_failure(f)}
    if found and "about" in found:
        return {**found["about"], "figures": kept} if kept else None
    return dict(kept) or None


def _is_failure(figure: Any) -> bool:
    return isinstance(figure, Mapping) and ("error" in figure or figure.get("holds", True) is False)


def order_by_age(parts: Sequence[Part], known: Known) -> list[Part]:
    """In their order, but what no run ever measured on this card before what one did with other kernels. The first parts, that
    judge, stay first."""
    seen = {name for run in known.apart.get(identity.KERNELS, []) for name, p in run.parts.items() if p["state"] in DONE}
    first = list(itertools.takewhile(lambda p: p.judges, parts))
    return first + sorted(parts[len(first) :], key=lambda p: p.name in seen)


def slim(run: Run) -> dict[str, Any]:
    """What a summary keeps of a run that stays apart: states and figures, without lists of kernels and evidence."""
    parts = {}
    for name, part in run.parts.items():
        figures = part.get("figures")
        kept = {k: _drop_lists(v) for k, v in figures.items()} if isinstance(figures, Mapping) else {}
        parts[name] = {"state": part["state"], "figures": kept, **({"seconds": part["seconds"]} if "seconds" in part else {})}
    return {"name": run.name, "date": run.date, "identity": run.identity, "parts": parts}


def _drop_lists(figure: Any) -> Any:
    return {k: v for k, v in figure.items() if not isinstance(v, list)} if isinstance(figure, Mapping) else figure
