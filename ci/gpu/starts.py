"""Seconds from starting a process to its first token, made-up weights included: JSON.

    python ci/gpu/starts.py --device cuda [--shape llama-1b] [--have FILE] [--output-json FILE]

start carried: with the kernels that this machine was given (TRITON_CACHE_DIR). start cold: no kernel was ever compiled. start
warm: with those of the process before. Each has the seconds until "framework imported", "weights loaded", "steps prepared" and
"engine built", counted from the start.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import read_have
from shapes import SHAPES, Case

FIRST = """
import argparse, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import measure
path, device, length, vocab = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
args = argparse.Namespace(device=device, dtype="bfloat16", length=length, variant=False, quantization=None)
llm = measure.open_model(path, args)
measure.generate(llm, vocab, [8], 1)
print("first token", flush=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="platform to start on")
    parser.add_argument("--shape", default="llama-1b", choices=sorted(SHAPES))
    parser.add_argument("--length", type=int, default=16384, help="longest sequence served")
    parser.add_argument("--have", type=Path, metavar="FILE", help="an earlier report; starts in it are not made again")
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    case, found = Case(args.shape), read_have(args.have)
    report = {"device": args.device, "figures": found}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model"
        path.mkdir()
        (path / "config.json").write_text(json.dumps(case.config()))
        for name, cache in list_caches(Path(scratch), os.environ.get("TRITON_CACHE_DIR")).items():
            if case.named(name) in found:
                continue
            found[case.named(name)] = time_start(path, args, cache)
            print(f"{case.named(name)}: {json.dumps(found[case.named(name)])}", flush=True)
            if args.output_json:
                args.output_json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if all("error" not in f for f in found.values()) else 1


def list_caches(scratch: Path, given: str | None) -> dict[str, str]:
    """Name of a start -> the folder of compiled kernels that it finds, in order. Cold and warm ones share theirs."""
    own = str(scratch / "kernels")
    return ({"start carried": given} if given else {}) | {"start cold": own, "start warm": own}


def time_start(path: Path, args: argparse.Namespace, cache: str) -> dict[str, Any]:
    """{"seconds", "until": point -> seconds}, or {"error"} if the process made no token."""
    with tempfile.NamedTemporaryFile() as marks:
        start = time.monotonic()
        try:
            run_to_first_token(path, args, {"TRITON_CACHE_DIR": cache, "THALWEG_STARTUP_MARKS": marks.name})
        except RuntimeError as e:
            return {"error": str(e)}
        seconds = time.monotonic() - start
        return {"seconds": seconds, "until": read_marks(Path(marks.name), start)}


def read_marks(path: Path, start: float) -> dict[str, float]:
    """Point -> seconds from the start to its first pass."""
    out: dict[str, float] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, at = line.rpartition(" ")
        out.setdefault(name, round(float(at) - start, 3))
    return out


def run_to_first_token(path: Path, args: argparse.Namespace, env: dict[str, str]) -> None:
    """RuntimeError if the process made none."""
    vocab = json.loads((path / "config.json").read_text())["vocab_size"]
    words = [str(Path(__file__).parent), str(path), args.device, str(args.length), str(vocab)]
    done = subprocess.run(
        [sys.executable, "-c", FIRST, *words], capture_output=True, text=True, check=False, env=os.environ | env
    )  # fmt: skip
    if "first token" not in done.stdout:
        raise RuntimeError(f"a fresh process made no token: {done.stderr[-500:]}")


if __name__ == "__main__":
    sys.exit(main())
