"""What this machine's accelerator can do: the conformance kit, the platform's own tests, benchmarks. JSON under $OUT.

Runs on the best platform this machine has, or the one named. Where the machine has no accelerator that a platform drives, it
runs on the CPU with small sizes and says so in summary.json, so that a green run never claims a device it did not use.
--hosted: the GPU platforms' own device on the processor, small; so that every part has run before a GPU is at hand.
Exit status: 0 if every part passed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from thalweg.hal import discovery

ROOT = Path(__file__).parents[2]
NOT_DEVICES = ("cpu", "reference", "null")
HOSTED = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"
TESTS = {"cuda": "torch_gpu", "rocm": "torch_gpu", "xpu": "torch_gpu", HOSTED: "torch_gpu"}
"""Folders of tests/backends, where they are not the platform's name."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", help="platform to run on (default: the best this machine has)")
    parser.add_argument("--hosted", action="store_true", help="the GPU platforms' device on the processor, small")
    parser.add_argument("--quick", action="store_true", help="conformance and checks only, no benchmarks")
    parser.add_argument("--only", nargs="*", metavar="PART", help="these parts, as summary.json names them")
    parser.add_argument("--seconds", type=float, default=3600, help="time limit of one part (default: %(default)g)")
    args = parser.parse_args()
    if args.hosted and args.platform:
        parser.error("--hosted is a platform of its own: leave --platform out")
    out = Path(os.environ.get("OUT") or ROOT / "build" / "device")
    out.mkdir(parents=True, exist_ok=True)

    probes = discovery.probe_all()
    if args.hosted:
        platform, note = HOSTED, "a GPU's device, run on the processor: it proves the path, and its figures mean nothing"
    else:
        platform, note = choose(args.platform, {name: p.score for name, p in probes.items()})
    print(f"platform: {platform}. {note}", flush=True)
    summary: dict[str, Any] = {
        "platform": platform,
        "accelerated": accelerated(platform),
        "note": note,
        "probes": {name: {"score": p.score, "reason": p.reason} for name, p in probes.items()},
        "parts": {},
    }
    todo = parts(platform, out, args.quick)
    if unknown := set(args.only or ()) - set(todo):
        parser.error(f"--only: no part is called {', '.join(sorted(unknown))}; there are: {', '.join(todo)}")
    for name, command in todo.items():
        if args.only and name not in args.only:
            continue
        summary["parts"][name] = execute(name, command, out, args.seconds)
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    failed = [name for name, part in summary["parts"].items() if part["exit"] != 0]
    print(f"{platform}: {'all parts passed' if not failed else 'FAILED: ' + ', '.join(failed)}; see {out / 'summary.json'}")
    return 1 if failed else 0


def accelerated(platform: str) -> bool:
    return platform not in (*NOT_DEVICES, HOSTED)


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


def parts(platform: str, out: Path, quick: bool) -> dict[str, list[str]]:
    """Name -> command. Each runs in its own process, so that one crash does not hide the others."""
    kit = [sys.executable, "-m", "pytest", "--pyargs", "thalweg.hal.testing", f"--platform={platform}"]
    todo = {"conformance": [*kit, f"--junitxml={out / 'conformance.xml'}"]}
    own = ROOT / "tests" / "backends" / TESTS.get(platform, platform)
    if own.is_dir():
        todo["tests"] = [sys.executable, "-m", "pytest", str(own), f"--junitxml={out / 'tests.xml'}"]
    here = Path(__file__).parent
    todo["checks"] = [sys.executable, str(here / "checks.py"), "--device", platform, f"--output-json={out / 'checks.json'}"]
    if not quick:
        small = [] if accelerated(platform) else ["--shapes=tiny", "--quick"]
        figures = [sys.executable, str(here / "measure.py"), "--device", platform, *small]
        todo["measure"] = [*figures, f"--output-json={out / 'figures.json'}"]
        todo["measure as it comes"] = [*figures, "--as-it-comes", f"--output-json={out / 'figures-as-it-comes.json'}"]
        todo["kernels"] = [*kit, "--mode=perf"]
        todo["support"] = [*kit, "--mode=support"]
        bench = [sys.executable, "-m", "thalweg", "bench"]
        todo["bench host"] = [*bench, "host"]
        few = {
            "latency": ["--output-len=16", "--num-iters-warmup=1", "--num-iters=2"],
            "throughput": ["--num-prompts=4", "--input-len=16", "--output-len=8"],
        }
        for kind, sizes in few.items():
            words = [*bench, kind, "--device", platform, "--output-json", str(out / f"{kind}.json")]
            todo[f"bench {kind}"] = words if accelerated(platform) else [*words, *sizes]
    return todo


def execute(name: str, command: list[str], out: Path, seconds: float) -> dict[str, Any]:
    """Run one part; its whole output goes to a log of its name. Exit 124: it did not end in time, and was ended."""
    log = out / f"{name.replace(' ', '-')}.log"
    print(f"== {name}: {' '.join(command)}", flush=True)
    start = time.monotonic()
    with log.open("w") as f:
        process = subprocess.Popen(command, cwd=ROOT, stdout=f, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = 124
    took = time.monotonic() - start
    print(f"   exit {code}, {took:.0f} s", flush=True)
    if code:
        print("   " + "\n   ".join(log.read_text(errors="replace").splitlines()[-12:]), flush=True)
    return {"command": command, "exit": code, "seconds": round(took, 1), "log": log.name}


if __name__ == "__main__":
    sys.exit(main())
