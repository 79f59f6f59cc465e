"""What this machine's accelerator can do: is it right, and how fast. summary.json and results.tar.gz under $OUT, and a table.

Runs on the best platform this machine has, or the one named. Where the machine has no accelerator that a platform drives, it
runs on the CPU with small sizes and says so in summary.json, so that a green run never claims a device it did not use.
--hosted: the GPU platforms' own device on the processor, small; so that every part has run before a GPU is at hand.
--budget: seconds for all of it. A part gets what is left, up to a limit of its own, and is then ended; one that does not fit
is not run. --resume continues with those, and carries over what the earlier run found.
Exit status: 0 if every part that was asked for passed, or cannot be run on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import running
from parts import HOSTED, NOT_DEVICES, Part, accelerated, parts
from report import table

from thalweg import __version__
from thalweg.hal import discovery
from thalweg.hal.testing import evidence

ROOT = Path(__file__).parents[2]
RESERVE = 10.0
"""Seconds of a budget kept for the end: archive, table, exit."""
DONE = ("passed", "failed", "not here")
"""States that a resumed run leaves as they are."""
QUICK = ("smoke", "checks", "kit exact attention", "kit exact linear", "kit rest 1", "kit rest 2")


def main() -> int:
    started = time.monotonic()
    args = _arguments()
    out = Path(os.environ.get("OUT") or ROOT / "build" / "device")
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the part that runs, and says so in the summary
    with tempfile.TemporaryDirectory(prefix="thalweg-device-") as scratch:
        work = Path(scratch)
        summary = begin(args)
        known = parts(summary["platform"], work, args.processes)
        asked = _asked(args, known)
        print(f"platform: {summary['platform']}. {summary['note']}", flush=True)
        for name in known:
            summary["parts"].setdefault(name, {"state": "not run", "why": "not asked for"})
        todo = [known[n] for n in asked if summary["parts"][n]["state"] not in DONE]
        try:
            run_all(todo, summary, running.Clock(started, args.budget, RESERVE), out, work, args.seconds)
        finally:
            summary["seconds"] = round(time.monotonic() - started, 1)
            write(summary, out, work)
    print(table(summary))
    wrong = by_state({n: summary["parts"][n]["state"] for n in asked})
    print(f"{summary['platform']}: {wrong or 'all parts passed'}; see {out}")
    return 1 if wrong else 0


def by_state(states: Mapping[str, str]) -> str:
    """What did not pass, in words: failed: A, B; killed: C."""
    wrong = {s: [n for n, state in states.items() if state == s] for s in ("failed", "killed", "not run")}
    return "; ".join(f"{state}: {', '.join(names)}" for state, names in wrong.items() if names)


def _asked(args: argparse.Namespace, known: Mapping[str, Part]) -> list[str]:
    """Names, in order. Exits with them for --list, and for a name that is none."""
    if args.list:
        print("\n".join(f"{p.name}{'' if p.default else '   (with --all)'}" for p in known.values()))
        sys.exit(0)
    if unknown := set(args.only or ()) - set(known):
        sys.exit(f"--only: no part is called {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    wanted = args.only or (QUICK if args.quick else [p.name for p in known.values() if p.default or args.all])
    return [name for name in known if name in wanted]


def begin(args: argparse.Namespace) -> dict[str, Any]:
    """The summary before anything ran: a new one, or what an earlier run found."""
    probes = discovery.probe_all()
    if args.hosted:
        platform, note = HOSTED, "a GPU's device, run on the processor: it proves the path, and its figures mean nothing"
    else:
        platform, note = choose(args.platform, {name: p.score for name, p in probes.items()})
    summary: dict[str, Any] = {
        "thalweg": __version__,
        "platform": platform,
        "accelerated": accelerated(platform),
        "note": note,
        "probes": {name: {"score": p.score, "reason": p.reason} for name, p in probes.items()},
        "parts": {},
    }
    if args.resume:
        earlier = resumed(args.resume, platform)
        summary["parts"], summary["seconds_before"] = earlier["parts"], _spent(earlier)
    if args.triton_cache:
        os.environ["TRITON_CACHE_DIR"] = str(args.triton_cache.resolve())
        summary["triton_cache"] = {"folder": str(args.triton_cache), "kernels_before": _kernels(args.triton_cache)}
    return summary


def resumed(file: Path, platform: str) -> dict[str, Any]:
    """An earlier run's summary. Exits in words if it is none, or another platform's."""
    try:
        earlier: dict[str, Any] = json.loads(file.read_text())
        of, found = earlier["platform"], {n: p["state"] for n, p in earlier["parts"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        sys.exit(f"--resume: {file} is no summary of a run: {type(e).__name__}: {e}")
    if of != platform:
        sys.exit(f"--resume: {file} is of platform {of!r}, this run is on {platform!r}")
    for name, state in found.items():
        if state == "running":  # whoever ended it ended the run too
            earlier["parts"][name]["state"] = "killed"
    return earlier


def _spent(summary: Mapping[str, Any]) -> float:
    return round(summary.get("seconds_before", 0) + summary.get("seconds", 0), 1)


def _kernels(cache: Path) -> int:
    """Kernels that a Triton cache holds: each has a description of its own."""
    return sum(1 for f in cache.glob("*/*.json") if not f.name.startswith("__grp__"))


def choose(asked: str | None, scores: dict[str, int]) -> tuple[str, str]:
    """(platform, why). A named platform that cannot run here is an error: asking for it is a claim about the machine."""
    if asked is not None:
        if scores.get(asked, 0) <= 0:
            sys.exit(f"platform {asked!r} cannot run here; `thalweg backends` says why")
        return asked, "as asked"
    devices = [name for name, score in scores.items() if score > 0 and name not in NOT_DEVICES]
    if devices:
        return max(devices, key=lambda name: scores[name]), "the best accelerator here"
    return "cpu", "no platform drives an accelerator of this machine: these figures are the CPU's"


def run_all(
    todo: list[Part], summary: dict[str, Any], clock: running.Clock, out: Path, work: Path, most: float
) -> None:  # fmt: skip
    """Every part that still fits, one after the other. most: seconds of one part. A part's own limit is for runs that have
    a budget: there a part that hangs must leave something to the others."""
    for part in todo:
        found = summary["parts"][part.name] = {"state": "not run", "command": part.command}
        limit = min(most, clock.left(), part.most if clock.left() < float("inf") else most)
        if limit < min(part.least, most):
            found["why"] = f"takes {part.least:.0f} s or more, {max(0.0, clock.left()):.0f} s are left"
            print(f"== {part.name}: not run: it {found['why']}", flush=True)
            write(summary, out, work)
            continue
        found |= {"state": "running", "limit": round(limit, 1)}
        write(summary, out, work)
        try:
            found |= running.execute(part, work, limit)
        except BaseException:
            found["state"] = "killed"
            raise
        finally:
            found |= running.results(part)
            write(summary, out, work)


def write(summary: dict[str, Any], out: Path, work: Path) -> None:
    """Both files of $OUT, each whole at any moment."""
    if found := evidence.merge(p["evidence"] for p in summary["parts"].values() if "evidence" in p):
        summary["evidence"] = found
    if cache := summary.get("triton_cache"):
        cache["kernels_after"] = _kernels(Path(os.environ["TRITON_CACHE_DIR"]))
    running.replace(out / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())
    running.replace(out / "results.tar.gz", running.archive(work))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", help="platform to run on (default: the best this machine has)")
    parser.add_argument("--hosted", action="store_true", help="the GPU platforms' device on the processor, small")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS", help="for all of it (default: none)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on where the run that wrote this summary.json ended")
    parser.add_argument("--only", nargs="*", metavar="PART", help="these parts (--list names them)")
    parser.add_argument("--quick", action="store_true", help="whether it is right, not how fast")
    parser.add_argument("--all", action="store_true", help="also what needs no device, or what other parts show better")
    parser.add_argument("--list", action="store_true", help="print the parts, in their order, and run nothing")
    parser.add_argument("--seconds", type=float, default=3600, help="limit of one part (default: %(default)g, or its own)")
    parser.add_argument("--processes", type=int, default=0, metavar="N", help="of the kit (default: by cores)")
    parser.add_argument("--triton-cache", type=Path, metavar="DIR", help="kernels compiled elsewhere; Triton adds to it")
    args = parser.parse_args()
    if args.hosted and args.platform:
        parser.error("--hosted is a platform of its own: leave --platform out")
    if args.budget <= RESERVE:
        parser.error(f"--budget: {RESERVE:g} s are kept for the end: give more than that")
    if args.triton_cache and not args.triton_cache.is_dir():
        parser.error(f"--triton-cache: there is no folder {args.triton_cache}")
    return args


if __name__ == "__main__":
    sys.exit(main())
