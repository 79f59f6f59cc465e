"""What ci/tpu/run does with its budget, its parts and an earlier run."""

from __future__ import annotations

import json
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[3] / "ci/tpu/machine.py"


@pytest.fixture
def machine() -> Any:
    """By its path: another folder of ci has a file of this name."""
    spec = util.spec_from_file_location("tpu_machine", FILE)
    assert spec is not None
    assert spec.loader is not None
    made = util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def run(machine: Any, monkeypatch: pytest.MonkeyPatch, out: Path, todo: dict[str, str], *words: str) -> tuple[int, Any]:
    """Exit status, and the states of the parts. todo: name -> Python."""
    monkeypatch.setenv("OUT", str(out))
    monkeypatch.setattr(machine, "parts", lambda *_: {n: [sys.executable, "-c", code] for n, code in todo.items()})
    monkeypatch.setattr(sys, "argv", ["machine.py", *words])
    status = machine.main()
    return status, {n: p["state"] for n, p in json.loads((out / "summary.json").read_text())["parts"].items()}


@pytest.mark.slow
def test_a_part_that_outlasts_the_budget_is_named_and_a_resumed_run_goes_on(
    machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    first = f"open({str(ran)!r}, 'a').write('x')"
    todo = {"a": first, "b": "import time; time.sleep(3600)", "c": "pass"}
    assert run(machine, monkeypatch, tmp_path, todo, "--budget", "15") == (1, {"a": "passed", "b": "killed", "c": "not run"})
    todo["b"] = "raise SystemExit(3)"
    assert run(machine, monkeypatch, tmp_path, todo, "--resume") == (1, {"a": "passed", "b": "failed", "c": "passed"})
    todo["b"] = "pass"
    assert run(machine, monkeypatch, tmp_path, todo, "--resume") == (0, {"a": "passed", "b": "passed", "c": "passed"})
    assert ran.read_text() == "x"
    with pytest.raises(SystemExit, match="of a run on a TPU: give another OUT"):
        run(machine, monkeypatch, tmp_path, todo, "--resume", "--host")


def test_every_part_is_there_and_one_that_is_not_is_refused(
    machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hosted, real = machine.parts(tmp_path, True), machine.parts(tmp_path, False)
    assert list(hosted) == list(real)[: len(hosted)]
    assert {"latency 1b", "roofline 8b", "kit rest"} < set(real)
    assert all("jax_platform" not in " ".join(c) for c in real.values())
    assert json.loads((tmp_path / "llama-8b/config.json").read_text())["hidden_size"] == 4096
    with pytest.raises(SystemExit):
        run(machine, monkeypatch, tmp_path, {"a": "pass"}, "--only", "z")
