"""What this machine's accelerator can do: is it right, and how fast. summary.json and results.tar.gz under $OUT, and a table.

Runs on the best platform this machine has, or the one named. Where the machine has no accelerator that a platform drives, it
runs on the CPU with small sizes and says so in summary.json, so that a green run never claims a device it did not use.
--hosted: the GPU platforms' own device on the processor, small; so that every part has run before a GPU is at hand.
--plan quick: two commands for a machine of twelve minutes, each with its budget. --plan long: everything.
--budget: seconds for all of it. A part gets what is left, up to its own limit, and is then ended; one that does not fit
is not run. --resume goes on by figure: those of the same card, software and kernels are kept, others are shown apart.
Exit status: 1 if a part failed, or one that says whether the numbers are right did not run to its end. Speed is never a
failure, nor is a lead (what the sanitizer, the profiler and the sweep find).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import caches
import earlier
import identity
import plans
import predict
import running
from parts import HOSTED, NOT_DEVICES, Part, accelerated
from report import table

from thalweg import __version__
from thalweg.hal import discovery
from thalweg.hal.testing import evidence

ROOT = Path(__file__).parents[2]
RESERVE = 10.0
"""Seconds of a budget kept for the end: archive, table, exit."""


def main() -> int:
    started = time.monotonic()
    args = _arguments()
    if args.predict:
        full = plans.make_parts(args.plan, "cuda", Path())
        print("\n".join(predict.foretell([n for name in _select(args, full) for n in full[name].wanted])))
        return 0
    out = Path(os.environ.get("OUT") or ROOT / "build" / "device")
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the part that runs, and says so in the summary
    with tempfile.TemporaryDirectory(prefix="thalweg-device-") as scratch:
        work = Path(scratch)
        platform, note, probes = _choose_platform(args)
        known = plans.make_parts(args.plan, platform, work, args.processes)
        requested = _select(args, known)
        summary, found = begin(args, platform, note, probes)
        print(f"platform: {platform}. {note}", flush=True)
        for name in known:
            summary["parts"].setdefault(name, {"state": "not run", "why": "not asked for"})
        todo = [known[n] for n in requested if not earlier.is_settled(known[n], found.parts.get(n), summary["identity"])]
        try:
            clock = running.Clock(started, args.budget, RESERVE)
            run_all(earlier.order_by_age(todo, found), summary, clock, out, work, args.seconds)
        finally:
            summary["seconds"] = round(time.monotonic() - started, 1)
            write(summary, out, work)
    print(table(summary, predict.make_predictions(summary)))
    wrong, words = judge(summary["parts"], [known[n] for n in requested])
    print(f"{platform}: {words or 'all parts passed'}; see {out}")
    return 1 if wrong else 0


def judge(found: Mapping[str, Mapping[str, Any]], requested: Sequence[Part]) -> tuple[bool, str]:
    """(is something wrong, what did not pass, in words: "failed: A, B; killed: C"). A part that failed is wrong unless what it
    finds is a lead. One that judges is wrong too if it did not run to its end."""
    words, wrong = [], False
    for state in ("failed", "killed", "not run"):
        parts = [p for p in requested if found[p.name]["state"] == state]
        wrong |= any(not p.lead if state == "failed" else p.judges for p in parts)
        words += [f"{state}: {', '.join(f'{p.name} (a lead)' if p.lead else p.name for p in parts)}"] if parts else []
    return wrong, "; ".join(words)


def _choose_platform(args: argparse.Namespace) -> tuple[str, str, dict[str, Any]]:
    """(platform, why, what each platform says of this machine)."""
    probes = discovery.probe_all()
    scores = {name: {"score": p.score, "reason": p.reason} for name, p in probes.items()}
    if args.hosted:
        return HOSTED, "a GPU's device, run on the processor: it proves the path, and its figures mean nothing", scores
    return *choose(args.platform, {name: p.score for name, p in probes.items()}), scores


def _select(args: argparse.Namespace, known: Mapping[str, Part]) -> list[str]:
    """Names, in order. Exits with them for --list, and for a name that is none. A later command of a plan that goes on from
    an earlier one begins with what that left."""
    if args.list:
        more = {n: f"   (--command {n})" for n in range(2, len(plans.BUDGETS[args.plan]) + 1)}
        print("\n".join(f"{p.name}{more.get(p.command, '') if p.default else '   (with --all)'}" for p in known.values()))
        sys.exit(0)
    if unknown := set(args.only or ()) - set(known):
        sys.exit(f"--only: no part is called {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    if args.only:
        return [name for name in known if name in args.only]
    commands = range(1, args.command + 1) if args.resume else (args.command,)
    return [name for name, p in known.items() if args.all or (p.default and p.command in commands)]


def begin(
    args: argparse.Namespace, platform: str, note: str, probes: Mapping[str, Any]
) -> tuple[dict[str, Any], earlier.Known]:  # fmt: skip
    """(the summary before anything ran, what earlier runs found)."""
    now, date = identity.identify(platform, args.pack), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    runs = [
        run
        for requested in args.resume or ()
        for file in earlier.find_sources(requested, args.pack)
        for run in earlier.read(file)
    ]
    found = earlier.join(runs, now)
    summary: dict[str, Any] = {
        "thalweg": __version__,
        "name": f"{date} {(now['commit'] or 'unknown commit')[:12]}",
        "date": date,
        "platform": platform,
        "accelerated": accelerated(platform),
        "note": note,
        "identity": now,
        "plan": args.plan,
        "command": args.command,
        "words": shorten(sys.argv[1:]),
        "probes": dict(probes),
        "parts": dict(found.parts),
        "apart": {words: [earlier.slim(r) for r in some] for words, some in found.apart.items()},
        "seconds_before": round(sum(p.get("seconds", 0) for p in found.parts.values()), 1),
    }
    if cache := _prepare_cache(args):
        os.environ["TRITON_CACHE_DIR"] = str(cache)
        summary["triton_cache"] = {"folder": str(cache), "kernels_before": caches.count(cache)}
    return summary, found


def _prepare_cache(args: argparse.Namespace) -> Path | None:
    """The folder where every part finds compiled kernels, and Triton adds to them: the one given, or a copy of the pack's."""
    if args.triton_cache:
        caches.relocate(args.triton_cache)
        return Path(args.triton_cache).resolve()
    if args.pack and (args.pack / "triton").is_dir():
        return caches.copy(args.pack / "triton", ROOT / "build" / "here" / "triton")
    return None


def choose(requested: str | None, scores: dict[str, int]) -> tuple[str, str]:
    """(platform, why). A named platform that cannot run here is an error: asking for it is a claim about the machine."""
    if requested is not None:
        if scores.get(requested, 0) <= 0:
            sys.exit(f"platform {requested!r} cannot run here; `thalweg backends` says why")
        return requested, "as asked"
    devices = [name for name, score in scores.items() if score > 0 and name not in NOT_DEVICES]
    if devices:
        return max(devices, key=lambda name: scores[name]), "the best accelerator here"
    return "cpu", "no platform drives an accelerator of this machine: these figures are the CPU's"


def run_all(
    todo: Sequence[Part], summary: dict[str, Any], clock: running.Clock, out: Path, work: Path, most: float
) -> None:  # fmt: skip
    """Every part that still fits, one after the other. most: seconds of one part. A part's own limit is for runs that have
    a budget: there a part that hangs must leave something to the others."""
    for part in todo:
        before = summary["parts"].get(part.name, {})
        have, words = earlier.carry(part, before), shorten(part.words, work)
        limit = min(most, clock.left(), part.most if clock.left() < float("inf") else most)
        if limit < min(part.least, most):
            why = f"needs {part.least:.0f} s or more, {max(0.0, clock.left()):.0f} s are left"
            kept = {k: before[k] for k in ("figures", "about", "of", "run", "commit") if k in before} if have else {}
            summary["parts"][part.name] = {"state": "not run", "command": words, "why": why, **kept}
            print(f"== {part.name}: not run: it {why}", flush=True)
            write(summary, out, work)
            continue
        found = summary["parts"][part.name] = {"state": "running", "limit": round(limit, 1), "command": words}
        write(summary, out, work)
        try:
            found |= running.execute(part, work, limit, have)
        except BaseException:
            found["state"] = "killed"
            raise
        finally:
            found |= running.results(part) or ({k: before[k] for k in ("figures", "about") if k in before} if have else {})
            if of := {name: run for name, run in before.get("of", {}).items() if have and name in _read_figures(have)}:
                found["of"] = of
            write(summary, out, work)


def shorten(words: Sequence[str], work: Path | None = None) -> list[str]:
    """A command as it reads on any machine: without folders of this one."""
    folders = {str(ROOT): ".", **({str(work): "$OUT"} if work else {}), str(Path.home()): "~"}
    out = []
    for word in ["python" if w == sys.executable else w for w in words]:
        for folder, short in folders.items():
            word = word.replace(folder, short)
        out.append(word)
    return out


def _read_figures(report: Mapping[str, Any]) -> Mapping[str, Any]:
    figures: Mapping[str, Any] = report.get("figures", report)
    return figures


def write(summary: dict[str, Any], out: Path, work: Path) -> None:
    """Both files of $OUT, each whole at any moment."""
    if found := evidence.merge(p["evidence"] for p in summary["parts"].values() if "evidence" in p):
        summary["evidence"] = found
    if cache := summary.get("triton_cache"):
        cache["kernels_after"] = caches.count(Path(cache["folder"]))
    running.replace(out / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())
    running.replace(out / "results.tar.gz", running.archive(work))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", help="platform to run on (default: the best this machine has)")
    parser.add_argument("--hosted", action="store_true", help="the GPU platforms' device on the processor, small")
    parser.add_argument("--plan", choices=sorted(plans.BUDGETS), default="long", help="which parts (default: %(default)s)")
    parser.add_argument("--command", type=int, default=1, metavar="N", help="which command of the plan (default: the first)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="for all of it (default: the plan's)")
    parser.add_argument("--resume", nargs="+", metavar="FILE", help="keep figures of these summaries; auto: of the ledger")
    parser.add_argument("--only", nargs="*", metavar="PART", help="these parts (--list names them)")
    parser.add_argument("--all", action="store_true", help="also what needs no device, or what other parts show better")
    parser.add_argument("--list", action="store_true", help="print the plan's parts, in their order, and run nothing")
    parser.add_argument("--predict", action="store_true", help="print what the figures should be on an H100, and run nothing")
    parser.add_argument("--seconds", type=float, default=3600, help="limit of one part (default: %(default)g, or its own)")
    parser.add_argument("--processes", type=int, default=0, metavar="N", help="of the kit (default: by cores)")
    parser.add_argument("--pack", type=Path, metavar="DIR", help="what ci/gpu/pack made: kernels, identity, summaries")
    parser.add_argument("--triton-cache", type=Path, metavar="DIR", help="kernels compiled elsewhere; Triton adds to it")
    args = parser.parse_args()
    budgets = plans.BUDGETS[args.plan]
    if not 1 <= args.command <= len(budgets):
        parser.error(f"--command: the plan {args.plan} has {len(budgets)}")
    args.budget = budgets[args.command - 1] if args.budget is None else args.budget
    if args.hosted and args.platform:
        parser.error("--hosted names the platform: leave --platform out")
    if args.budget <= RESERVE:
        parser.error(f"--budget: {RESERVE:g} s are kept for the end: give more than that")
    for name in ("triton_cache", "pack"):
        if (folder := getattr(args, name)) and not folder.is_dir():
            parser.error(f"--{name.replace('_', '-')}: there is no folder {folder}")
    return args


if __name__ == "__main__":
    sys.exit(main())
