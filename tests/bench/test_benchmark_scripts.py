"""The committed benchmark commands run: each once, at the smallest size it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "vs_transformers": "--shape qwen3-0.6b --layers 1 --input 8 --output 2 --batch 2 --repeats 1 --threads 1",
    "batch_invariance": "--model {nano} --repeats 1",
    "experts_cpu": "--experts 4 --top 2 --hidden 128 --inner 64 --tokens 1,9 --body 1,9 --repeats 1 --threads 1",
    "encoders_cpu": "--lengths 3 --batches 1,2 --repeats 1 --layers 1",
    "resume": "--streams 2 --kills 1 --pause 1",
}


@pytest.mark.nightly
@pytest.mark.parametrize("script", sorted(SMALL))
def test_a_benchmark_prints_its_report(script):
    args = SMALL[script].format(nano=ROOT / "thalweg/nano/weights").split()
    done = subprocess.run(
        [sys.executable, f"benchmarks/{script}.py", *args],
        cwd=ROOT, capture_output=True, text=True, timeout=240, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert report
    assert all(value != {} for value in report.values())
