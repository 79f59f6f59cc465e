"""Kernels compiled where there is no GPU: a GPU's process finds them, and live traffic asks for no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thalweg.checkpoint.hub import resolve_model

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
NANO = str(resolve_model("thalweg-nano"))


def _run(*command: str) -> Any:
    """The last line of its output, which is JSON."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(HERE), str(ROOT)])
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
@pytest.mark.slow
def test_numbers_that_change_with_every_step_make_no_kernels_of_their_own(arch: str) -> None:
    """Tokens, sequences, widths of tables and lengths of lists, in every mixture: the first few steps had all there are."""
    found = _run(str(HERE / "elsewhere.py"), "variants", arch, NANO)
    assert found["first"] > 20
    assert found["later"] == []


@pytest.mark.nightly
@pytest.mark.slow
def test_a_process_on_a_gpu_compiles_nothing_that_was_compiled_where_there_was_none(tmp_path: Path) -> None:
    cache = str(tmp_path)
    (made,) = _run("-m", "thalweg", "compile", NANO, "--arch", "sm_90", "--jobs", "2", "--cache-dir", cache, "--json")
    assert made["problems"] == []
    assert made["compiled"] == made["kernels"] > 20
    served = _run(str(HERE / "elsewhere.py"), "serve", "sm_90", NANO, cache)
    assert served["misses"] == []
    assert served["hits"] > 10
    assert served["launched"] > 500
    (again,) = _run("-m", "thalweg", "compile", NANO, "--arch", "sm_90", "--jobs", "1", "--cache-dir", cache, "--json")
    assert (again["compiled"], again["cached"]) == (0, made["kernels"])
