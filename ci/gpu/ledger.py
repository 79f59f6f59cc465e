"""The ledger of what ran on devices: a file per run under docs/evidence/device, never edited.

    python ci/gpu/ledger.py add summary.json      # what `ci/gpu/run` wrote
    python ci/gpu/ledger.py list
    python ci/gpu/ledger.py show NAME             # the run's table, with what the model predicts

A file is called CARD-DATE-COMMIT.json, with -2 for another run of that day and commit. It has the identity of the run, what
platforms said of the machine, commands, seconds, figures, and the kit's evidence. A run of a tree with changes is written
too, as `dirty`, and is evidence of nothing. `ci/support.py --ledger` makes the tables that say where this has run of it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "evidence" / "device"
RAN = ("passed", "failed", "not here", "killed")
"""States of parts that say something."""
KEPT = ("state", "seconds", "exit", "limit", "command", "figures", "about", "evidence", "of")
"""Of a part."""
LEFT_OUT = ("records",)
"""Figures that stay in the archive of a run: of a sweep each time of each tile."""
HEAD = ("name", "date", "thalweg", "platform", "accelerated", "identity", "plan", "words", "probes", "seconds")


def read_entries(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """File name without its end -> what it holds, the oldest first."""
    found = {p.stem: json.loads(p.read_text()) for p in folder.glob("*.json")} if folder.is_dir() else {}
    return dict(sorted(found.items(), key=lambda item: (item[1]["date"], item[0])))


def add(summary: Mapping[str, Any], folder: Path = FOLDER) -> Path:
    """The file that was written. SystemExit in words where this was no device, or nothing of it is new."""
    result = make_entry(summary, [e["name"] for e in read_entries(folder).values()])
    folder.mkdir(parents=True, exist_ok=True)
    of = result["identity"]
    name = f"{make_slug(of['card'])}-{result['date'][:10]}-{of['commit'][:12]}{'-dirty' if result['dirty'] else ''}"
    for number in range(1, 1000):
        path = folder / f"{name}{f'-{number}' if number > 1 else ''}.json"
        try:
            with path.open("x") as f:
                f.write(json.dumps(result, indent=1) + "\n")
        except FileExistsError:
            continue
        return path
    sys.exit(f"ledger: {folder} has 999 runs called {name}")


def make_entry(summary: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """What the ledger keeps of a summary. known: names of runs that it has: what was kept from those is left out."""
    of = summary.get("identity") or {}
    if not summary.get("accelerated"):
        sys.exit(f"ledger: this was no device: {summary.get('note', 'no summary of a run')}")
    if not of.get("commit"):
        sys.exit("ledger: the run does not know its commit: without a repository, ci/gpu/run needs a pack (ci/gpu/pack)")
    plans: dict[str, list[str]] = {}
    parts = {name: p for name, part in summary["parts"].items() if (p := _make_part(part, known, plans))}
    if not parts:
        sys.exit("ledger: nothing of this run is new")
    from thalweg.hal.testing import evidence

    found = evidence.merge(p["evidence"] for p in parts.values() if "evidence" in p)
    for part in parts.values():
        part.pop("evidence", None)
    result = {k: summary[k] for k in HEAD if k in summary}
    return {**result, "dirty": bool(of.get("dirty")), "parts": parts, "kernel_plans": plans, "evidence": found}


def _make_part(part: Mapping[str, Any], known: Sequence[str], plans: dict[str, list[str]]) -> dict[str, Any] | None:
    """None: it did not run, or it is another file's. Kernel plans go into `plans`, by name of the figure, equal ones once."""
    if part["state"] not in RAN or part.get("run") in known:
        return None
    result = {k: part[k] for k in KEPT if k in part}
    figures = result.get("figures")
    if not isinstance(figures, Mapping):
        return result
    figures = {name: f for name, f in figures.items() if name not in LEFT_OUT}
    old = {name for name, run in part.get("of", {}).items() if run in known}
    kept = {name: f for name, f in figures.items() if name not in old}
    result["figures"] = {name: _share_plan(name, f, plans) for name, f in kept.items()}
    result["of"] = {name: run for name, run in part.get("of", {}).items() if name in kept}
    return {k: v for k, v in result.items() if v or k != "of"}


def _share_plan(name: str, figure: Any, plans: dict[str, list[str]]) -> Any:
    if not isinstance(figure, Mapping) or "kernel_plan" not in figure:
        return figure
    lines = [line.partition(";")[0] for line in figure["kernel_plan"]]  # refusals follow
    of = next((n for n, plan in plans.items() if plan == lines), name)
    plans.setdefault(of, lines)
    return {**figure, "kernel_plan": f"as of {of}"}


def make_slug(card: str) -> str:
    """ "NVIDIA H100 80GB HBM3" -> "nvidia-h100-80gb-hbm3"."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")


def count_cases(result: Mapping[str, Any]) -> dict[str, int]:
    """Of a file's evidence: cases that passed, failed and were refused."""
    total = {"passed": 0, "failed": 0, "refused": 0}
    for kernels in result.get("evidence", {}).get("cells", {}).values():
        for cell in kernels.values():
            for word in total:
                total[word] += cell[word]
    return total


def show(name: str) -> str:
    """The table that the run printed. SystemExit where the ledger has no such run."""
    from predict import make_predictions
    from report import table

    known = read_entries()
    if name not in known:
        sys.exit(f"ledger: no run is called {name!r}; there are: {', '.join(known)}")
    return table(known[name], make_predictions(known[name]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    adds = commands.add_parser("add", help="write a run's file")
    adds.add_argument("summary", type=Path, help="what `ci/gpu/run` wrote")
    commands.add_parser("list", help="name the runs, the oldest first")
    shows = commands.add_parser("show", help="print the table of a run")
    shows.add_argument("name", help="of its file, with or without the folder and .json")
    args = parser.parse_args()
    if args.command == "add":
        path = add(json.loads(args.summary.read_text()))
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB; then: python ci/support.py --ledger")
        return 0
    if args.command == "show":
        print(show(Path(args.name).stem))
        return 0
    for name, result in read_entries().items():
        found = count_cases(result)
        print(f"{name}: {len(result['parts'])} parts, {found['passed']} cases of the kit passed, {found['failed']} failed")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
