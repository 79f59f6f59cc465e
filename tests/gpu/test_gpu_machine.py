"""`ci/gpu/run`: which parts there are, that one that hangs or fails is told, and that a checkout runs where nothing can be
installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def _script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"ci_gpu_{name}", ROOT / "ci" / "gpu" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_gpu_gets_every_part_at_full_size_and_a_processor_in_its_place_small_ones(tmp_path: Path) -> None:
    machine = _script("machine")
    full, hosted, quick = (machine.parts(p, tmp_path, q) for p, q in (("cuda", False), (machine.HOSTED, False), ("cuda", True)))
    assert list(full) == list(hosted)
    assert {"conformance", "tests", "checks", "measure", "measure as it comes", "kernels", "support"} < set(full)
    assert set(quick) == {"conformance", "tests", "checks"}
    assert "--shapes=tiny" not in full["measure"]
    assert "--shapes=tiny" in hosted["measure"]
    assert machine.accelerated("cuda")
    assert not machine.accelerated(machine.HOSTED)
    assert all(Path(word).exists() for part in full.values() for word in part if word.startswith(str(ROOT)))


def test_a_part_that_fails_or_hangs_is_told_and_ended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    machine = _script("machine")
    failed = machine.execute("one", [sys.executable, "-c", "print('what happened'); raise SystemExit(3)"], tmp_path, 60)
    hung = machine.execute("two", [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path, 1.5)
    assert (failed["exit"], hung["exit"]) == (3, 124)
    assert "what happened" in capfd.readouterr().out
    assert (tmp_path / "one.log").read_text() == "what happened\n"


def test_a_platform_that_cannot_run_here_is_refused_and_without_one_the_processor_says_so() -> None:
    machine = _script("machine")
    with pytest.raises(SystemExit, match="'cuda' cannot run here"):
        machine.choose("cuda", {"cuda": 0, "cpu": 10})
    assert machine.choose(None, {"cuda": 100, "xpu": 60, "cpu": 10})[0] == "cuda"
    name, note = machine.choose(None, {"cuda": 0, "cpu": 10, "reference": 2})
    assert name == "cpu"
    assert "the CPU's" in note


def test_a_checkout_that_is_not_installed_finds_its_platforms(tmp_path: Path) -> None:
    """In an interpreter that sees no installed packages."""
    folder = str(_script("here").metadata(tmp_path))
    code = "\n".join([
        "import json, sys", f"sys.path = [{folder!r}] + [p for p in sys.path if 'site-packages' not in p]",
        "from importlib.metadata import entry_points",
        "print(json.dumps([p.name for p in entry_points(group='thalweg.platforms')]))",
    ])  # fmt: skip
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert sorted(json.loads(done.stdout)) == ["cpu", "cuda", "null", "reference", "rocm", "tpu", "xpu"]


def test_what_is_missing_is_named_before_anything_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-S", str(ROOT / "ci/gpu/here.py"), "anything.py"]  # -S: no packages at all
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 1
    assert "has no torch, numpy, msgspec" in done.stderr


@pytest.mark.slow
def test_the_checks_of_a_gpu_hold_for_its_device_on_the_processor(tmp_path: Path) -> None:
    """Greedy and drawn tokens are the reference's, captured steps are eager ones bit by bit, and a crowd changes nothing."""
    command = [ROOT / "ci/gpu/run", "--here", "--hosted", "--only", "bench host"]
    env = {**os.environ, "OUT": str(tmp_path), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert not summary["accelerated"]
    assert summary["parts"]["bench host"]["exit"] == 0
    checks = _script("checks")
    report = checks.check(_script("machine").HOSTED, requests=4, tokens=10)["checks"]
    assert {name: c["holds"] for name, c in report.items()} == dict.fromkeys(("greedy", "random", "crowd", "captured"), True)
