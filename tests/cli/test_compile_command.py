"""`thalweg compile`: what it refuses, and that one kernel that cannot be compiled costs that kernel alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from thalweg import cli

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--arch: name at least one device; there are cuda: sm_75, sm_80"),
        (["--arch", "sm_1"], "--arch: 'sm_1' is not one that can be compiled for; there are cuda: sm_75"),
        (["--arch", "sm_90", "--device", "rocm"], "'sm_90' is not one that can be compiled for; there are rocm: gfx908"),
        (["--arch", "sm_90", "--device", "cpu"], "--device cpu compiles nothing ahead of time"),
        (["--arch", "xe2"], "'xe2' is not one that can be compiled for"),
        (["--arch", "sm_90", "--jobs", "0"], "--jobs: 0 processes compile nothing"),
        (["--arch", "sm_90", "nowhere"], "model: 'nowhere' does not exist"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_words(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", *words]) in (1, 2)
    assert said in capsys.readouterr().err


@pytest.mark.nightly
def test_a_compiler_that_dies_costs_its_kernel_and_no_other() -> None:
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "thalweg", "compile", "--arch", "sm_90", "--device", "fragile:FragilePlatform", "--json"]
    env = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1]}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--jobs", "2"], capture_output=True, text=True, env=env)
    assert done.returncode == 1, done.stderr
    (report,) = json.loads(done.stdout)
    assert (report["kernels"], report["compiled"], report["cached"]) == (5, 2, 1)
    assert sorted(report["problems"]) == [
        "dies: its compiler ended the process (status 9)", "refused: ValueError: too many registers",
    ]  # fmt: skip


@pytest.mark.slow
def test_settings_that_serving_refuses_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton")
    assert cli.main(["compile", "--arch", "sm_90", "--jobs", "1", "--max-model-len", "1000000"]) == 2
    assert "max_model_len 1000000 exceeds" in capsys.readouterr().err
