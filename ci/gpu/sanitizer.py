"""Three tokens of a model of two layers under NVIDIA's compute-sanitizer: accesses out of bounds (memcheck), races in shared
memory (racecheck). JSON.

    python ci/gpu/sanitizer.py --device cuda [--tools memcheck] [--seconds 290] [--output-json FILE]

memcheck runs without torch's allocator, which would hide what lies next to an array, and so without graphs; racecheck with
both. A finding is a lead: the tools know nothing of copies that run beside the instructions of a program.
Exit status: 77, and why in the JSON, where the tool or a device for it is not here; 1 if it found something.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TOOL = "compute-sanitizer"
PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/compute-sanitizer", "/usr/local/cuda/compute-sanitizer")
RUNS: Mapping[str, tuple[Mapping[str, str], bool]] = {
    "memcheck": ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, False), "racecheck": ({}, True),
}  # fmt: skip
"""Tool -> (environment, graphs)."""
FOUND = 99
TOKENS = """
import argparse, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import measure
path = Path(sys.argv[4])
(path / "config.json").write_text(json.dumps(measure.SHAPES["tiny"]))
args = argparse.Namespace(device=sys.argv[2], dtype="bfloat16", length=256, variant=False, quantization=None)
options = {"prepare": "none"} | ({} if sys.argv[3] == "1" else {"graphs": False})
llm = measure.open_model(path, args, additional_config=options, gpu_memory_utilization=0.2)
measure.generate(llm, measure.SHAPES["tiny"]["vocab_size"], [20], 3)
print("three tokens")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="platform to check")
    given = float(os.environ.get("PART_SECONDS", "290"))  # as `ci/gpu/run` says it
    parser.add_argument("--seconds", type=float, default=given, help="for all of it (default %(default)g)")
    parser.add_argument("--tools", default=",".join(RUNS), type=lambda s: s.split(","), help=f"of {', '.join(RUNS)}")
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    if wrong := [t for t in args.tools if t not in RUNS]:
        parser.error(f"--tools: {', '.join(wrong)}: choose from {', '.join(RUNS)}")
    why = refused(args.device)
    report: dict[str, Any] = {"why": why} if why else {}
    for name in () if why else args.tools:
        report[name] = check(name, args.device, args.seconds / len(args.tools) - 5)
        print(f"{name}: {json.dumps(report[name])}", flush=True)
        _write(args.output_json, report)
    print(json.dumps(report))
    _write(args.output_json, report)
    return 77 if why else int(any(r["exit"] for r in report.values()))


def tool() -> str | None:
    return shutil.which(TOOL) or next((p for d in PLACES if (p := shutil.which(TOOL, path=d))), None)


def refused(device: str) -> str | None:
    """Why it cannot run here."""
    if device != "cuda":
        return f"{TOOL} checks NVIDIA's devices, not platform {device}"
    return None if tool() else f"{TOOL} is not installed (it comes with the CUDA toolkit)"


def check(name: str, device: str, seconds: float) -> dict[str, Any]:
    """errors: as the tool counts them, None if it was ended before; tail: of what it said."""
    env, graphs = RUNS[name]
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            str(tool()), f"--tool={name}", f"--error-exitcode={FOUND}", "--launch-timeout=60", sys.executable, "-c", TOKENS,
            str(HERE), device, str(int(graphs)), scratch,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds, env={**os.environ, **env}, check=False
            )
            output, code = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired as e:
            output, code = (e.stdout or b"").decode(errors="replace"), 124
    return {"exit": code, "errors": errors(output), "generated": "three tokens" in output, "tail": output.splitlines()[-25:]}


def errors(output: str) -> int | None:
    """Of the tool's own summary."""
    counts = re.findall(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+)", output)
    return sum(map(int, counts)) if counts else None


def _write(path: Path | None, report: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
