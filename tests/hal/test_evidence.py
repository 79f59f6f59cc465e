"""Evidence of a run of the kit: counted once, wherever the tests ran and however a worker ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thalweg.hal.testing.evidence import PROPERTY, EvidenceCollector, merge

ROOT = Path(__file__).parents[2]


def _kit(file: Path, *words: str) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "pytest", "--pyargs", "thalweg.hal.testing", "-p", "no:cacheprovider", "--platform=reference",
        "-k", "test_kernel_gives and rms_norm", f"--evidence={file}", "--evidence-level=reference", *words,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    made: dict[str, Any] = json.loads(file.read_text())
    return made


@pytest.mark.slow
def test_workers_that_share_the_tests_make_the_evidence_that_one_process_makes(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    alone = _kit(tmp_path / "alone.json")
    shared = _kit(tmp_path / "shared.json", "-n", "2", "--dist", "worksteal")
    assert alone["cells"]["rms_norm"]["reference"]["passed"] > 1
    assert shared == alone


def _report(nodeid: str, when: str, outcome: str, *about: str) -> Any:
    properties = [("other", 1), (PROPERTY, list(about))] if about else []
    return SimpleNamespace(nodeid=nodeid, when=when, outcome=outcome, passed=outcome == "passed", user_properties=properties)


def test_a_test_whose_worker_died_has_failed_and_a_set_up_counts_only_if_it_did_not_pass() -> None:
    collector = EvidenceCollector()
    for report in (
        _report("a", "setup", "passed", "rope", "fast"), _report("a", "call", "passed", "rope", "fast"),
        _report("a", "teardown", "passed", "rope", "fast"),
        _report("b", "setup", "passed", "rope", "fast"), _report("b", "???", "failed"),  # as xdist says it
        _report("c", "setup", "skipped", "rope", "fast"), _report("d", "setup", "failed", "embed", "slow"),
        _report("e", "call", "failed"),  # about no kernel
    ):  # fmt: skip
        collector.pytest_runtest_logreport(report)
    assert collector.cells == {
        "rope": {"fast": {"passed": 1, "failed": 1, "refused": 1}}, "embed": {"slow": {"passed": 0, "failed": 1, "refused": 0}},
    }  # fmt: skip


def test_parts_of_a_run_add_up_and_those_of_other_runs_do_not() -> None:
    def part(level: str, op: str, passed: int) -> dict[str, Any]:
        counts = {"passed": passed, "failed": 1, "refused": 0}
        return {"level": level, "platforms": ["x"], "cells": {op: {"fast": counts}}}

    merged = merge([part("executed", "rope", 2), part("executed", "rope", 3), part("executed", "embed", 4)])
    assert merged == {
        "level": "executed", "platforms": ["x"],
        "cells": {
            "rope": {"fast": {"passed": 5, "failed": 2, "refused": 0}},
            "embed": {"fast": {"passed": 4, "failed": 1, "refused": 0}},
        },
    }  # fmt: skip
    with pytest.raises(ValueError, match="hosted"):
        merge([part("executed", "rope", 2), part("hosted", "rope", 3)])
    assert merge([]) == {}
