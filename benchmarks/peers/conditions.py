"""What the machine can do at this moment: bytes read and operations per second, with the fastest kernels thalweg has here, in a
process of its own so that nothing of it is left when an engine is measured.

    python -m benchmarks.peers.conditions THREADS FORM...          prints one line of JSON
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from thalweg.bench.roofline import ceilings
from thalweg.quantization.online import formats


def main(threads: int, forms: Sequence[str]) -> dict[str, Any]:
    from thalweg.backends.cpu import CpuOptions, CpuPlatform
    from thalweg.hal.platform import Place

    device = CpuPlatform().with_options(CpuOptions(threads)).open(Place())
    out: dict[str, Any] = {"load_average": os.getloadavg()[0], "read_gb_per_s": {}, "gemm_gop_per_s": {}}
    for form in forms:
        limit = ceilings(device, "bfloat16", formats(None if form == "bf16" else form).layers)
        out["read_gb_per_s"][form], out["gemm_gop_per_s"][form] = round(limit.read / 1e9, 2), round(limit.rate / 1e9, 1)
    device.close()
    return out


def measure(threads: int, forms: Sequence[str]) -> dict[str, Any]:
    """In a new process. RuntimeError with its words if it fails."""
    command = [sys.executable, "-m", "benchmarks.peers.conditions", str(threads), *forms]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"the machine's limits could not be measured: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2:])))
