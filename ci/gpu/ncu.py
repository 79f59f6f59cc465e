"""Two kernels under NVIDIA's Nsight Compute: what bounds them. JSON.

    python ci/gpu/ncu.py --device cuda [--output-json FILE]

The product of Llama 3.1 8B's `down` with 64 rows, and the attention of 64 decodes over 1,500 tokens each. Clocks are left as
they are. Exit status: 77, and why in the JSON, where the tool or the right to read counters is missing.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TOOL = "ncu"
PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")
KERNELS: Mapping[str, tuple[str, str]] = {
    "down, 64 rows": ("product", "product"), "attention, 64 x 1500": ("attention", "attend"),
}  # fmt: skip
"""Figure -> (what runs it here, what its kernel's name contains)."""
METRICS: Mapping[str, str] = {
    "microseconds": "gpu__time_duration.sum",
    "memory_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_percent": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor_percent": "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "issue_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "memory_bytes": "dram__bytes.sum",
    "l2_bytes": "lts__t_bytes.sum",
    "registers": "launch__registers_per_thread",
}  # fmt: skip
UNITS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "byte": 1.0, "Kbyte": 1e3,
         "Mbyte": 1e6, "Gbyte": 1e9}  # fmt: skip
FORBIDDEN = "ERR_NVGPUCTRPERM"
LAUNCHES = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="platform to run on")
    given = float(os.environ.get("PART_SECONDS", "60"))  # as `ci/gpu/run` says it
    parser.add_argument("--seconds", type=float, default=given, help="for both kernels (default %(default)g)")
    parser.add_argument("--run", choices=[what for what, _ in KERNELS.values()], help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    if args.run:
        launch(args.run, args.device, args.quick)
        return 0
    report: dict[str, Any] = {"figures": {}}
    if why := explain_refusal(args.device):
        report["why"] = why
    for name, (what, kernel) in {} if why else KERNELS.items():
        found = profile(what, kernel, args.device, args.seconds / len(KERNELS) - 2)
        if FORBIDDEN in found.get("error", ""):
            report["why"] = f"{TOOL}: this machine lets nobody read the device's counters ({FORBIDDEN})"
            break
        report["figures"][name] = found
        print(f"{name}: {json.dumps(found)}", flush=True)
        _write(args.output_json, report)
    print(json.dumps(report))
    _write(args.output_json, report)
    return 77 if "why" in report else int(any("error" in f for f in report["figures"].values()))


def find_tool() -> str | None:
    return shutil.which(TOOL) or next((p for d in PLACES if (p := shutil.which(TOOL, path=d))), None)


def explain_refusal(device: str) -> str | None:
    """Why it cannot run here."""
    if device != "cuda":
        return f"{TOOL} looks at NVIDIA's devices, not platform {device}"
    return None if find_tool() else f"{TOOL} is not installed (it comes with the CUDA toolkit)"


def profile(what: str, kernel: str, device: str, seconds: float) -> dict[str, Any]:
    """Metrics of one kernel, the median launch's; or "error"."""
    command = [
        str(find_tool()), "--clock-control", "none", "--set", "full", "--kernel-name", f"regex:{kernel}", "--launch-skip", "2",
        "--launch-count", str(LAUNCHES), "--csv", "--page", "raw", "--target-processes", "all",
        sys.executable, __file__, "--device", device, "--run", what,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"did not end in {seconds:.0f} s"}
    found = read_table(done.stdout)
    return found or {"error": (done.stdout + done.stderr)[-400:] or f"ended with {done.returncode}"}


def read_table(text: str) -> dict[str, Any]:
    """METRICS of the launch with the median duration, of the tool's table: a line of names, one of units, one per launch. {}:
    there is no table."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return {}
    names, units, *launches = csv.reader(line for line in lines[first:] if line.startswith('"'))
    rows = [dict(zip(names, row, strict=False)) for row in launches]
    scales = {n: UNITS.get(u, 1.0) for n, u in zip(names, units, strict=False)}

    def value(row: Mapping[str, str], metric: str) -> float | None:
        try:
            return float(row[metric].replace(",", "")) * scales[metric]
        except (KeyError, ValueError):
            return None

    found = [{ours: value(row, metric) for ours, metric in METRICS.items()} for row in rows]
    found.sort(key=lambda f: f["microseconds"] or 0)
    return {} if not found else {**found[len(found) // 2], "launches": len(found), "kernel": rows[0].get("Kernel Name")}


def launch(what: str, device: str, quick: bool) -> None:
    """In the process that the tool looks at: the kernel, some times."""
    import contestants
    import torch
    from ceilings import torch_device, wait

    at = torch_device(device)
    run = (_prepare_product if what == "product" else _prepare_attention)(contestants, at, quick)
    with torch.inference_mode():
        for _ in range(1 if quick else 2 + LAUNCHES):
            run()
            wait(at)


def _prepare_product(contestants: Any, at: Any, quick: bool) -> Callable[[], Any]:
    import torch

    from thalweg.backends.triton_kernels.linear import linear

    tiles, dtype = contestants._tiles(at), torch.float32 if at.type == "cpu" else torch.bfloat16
    rows, cols, width = (5, 64, 64) if quick else (64, 4096, 14336)
    x, weight = (torch.randn(n, width, device=at).to(dtype) for n in (rows, cols))
    return lambda: linear(tiles, x, weight)


def _prepare_attention(contestants: Any, at: Any, quick: bool) -> Callable[[], Any]:
    from thalweg.backends.triton_kernels.attention import TritonPagedAttention
    from thalweg.hal.attention import AttnSpec

    backend = TritonPagedAttention(contestants._tiles(at), True)
    spec = AttnSpec(4, 2, 16, 0.25, "float32") if quick else AttnSpec(32, 8, 128, 128**-0.5, "bfloat16")
    n, context = (2, 20) if quick else (64, 1500)
    run: Callable[[], Any] = contestants._attend(backend, spec, [context] * n, [1] * n, at)
    return run


def _write(path: Path | None, report: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
