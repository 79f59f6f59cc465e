"""The ledger of runs on devices: what is written, that nothing is written over, and that every claim about hardware follows
from it and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import support
from gpu_scripts import ROOT, script

from thalweg.cli import matrix

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PLAN = ["linear(width=4096) -> triton [batch-invariant]; not torch: its rows depend on what else is in the batch"]


def _cells(passed: int, failed: int = 0, kernel: str = "triton") -> dict[str, Any]:
    cell = {"passed": passed, "failed": failed, "refused": 1}
    return {"level": "executed", "platforms": ["cuda"], "cells": {"linear": {kernel: cell}}}


def _summary(**more: Any) -> dict[str, Any]:
    figures = {
        "llama-8b: open": {"seconds": 11.0, "kernel_plan": PLAN},
        "llama-8b fp8: open": {"seconds": 9.0, "kernel_plan": PLAN},
        "llama-8b: step 1": {"seconds": 0.006},
    }
    identity = {"card": "NVIDIA H200", "commit": COMMIT, "dirty": False, "kernels": "k"} | more.pop("identity", {})
    return {
        "name": "2026-11-26T13:00:00Z run", "date": "2026-11-26T13:00:00Z", "thalweg": "0.1", "platform": "cuda",
        "accelerated": True, "note": "the best accelerator here", "identity": identity, "plan": "quick",
        "words": ["--plan", "quick"], "probes": {"cuda": {"score": 100, "reason": "NVIDIA H200"}}, "seconds": 400.0,
        "parts": {
            "measure 8b": {"state": "passed", "seconds": 40.0, "command": ["python", "x"], "log": "x.log", "figures": figures},
            "kit exact linear": {"state": "passed", "seconds": 35.0, "figures": {"passed": 5}, "evidence": _cells(5)},
            "products": {"state": "failed", "figures": {"lines": ["a line"], "records": [{"us": 1.0}] * 1000}},
            "kit exact attention": {"state": "not run", "why": "takes 25 s or more, 3 s are left"},
        },
        **more,
    }  # fmt: skip


def test_a_run_has_a_file_of_its_own_and_none_is_written_over(tmp_path: Path) -> None:
    ledger = script("ledger")
    names = [ledger.add(_summary(name=f"run {i}"), tmp_path).name for i in range(3)]
    stem = "nvidia-h200-2026-11-26-0123456789ab"
    assert names == [f"{stem}.json", f"{stem}-2.json", f"{stem}-3.json"]
    assert [e["name"] for e in ledger.read_entries(tmp_path).values()] == ["run 0", "run 1", "run 2"]
    dirty = ledger.add(_summary(name="run 4", identity={"dirty": True}), tmp_path)
    assert dirty.name == f"{stem}-dirty.json"
    assert json.loads(dirty.read_text())["dirty"] is True
    other = ledger.add(_summary(name="run 5", identity={"card": "NVIDIA H100 80GB HBM3"}), tmp_path)
    assert other.name == "nvidia-h100-80gb-hbm3-2026-11-26-0123456789ab.json"


def test_a_file_holds_figures_and_evidence_and_a_kernel_plan_once(tmp_path: Path) -> None:
    ledger = script("ledger")
    made = json.loads(ledger.add(_summary(), tmp_path).read_text())
    assert made["identity"]["commit"] == COMMIT
    assert made["probes"]["cuda"]["score"] == 100
    assert list(made["parts"]) == ["measure 8b", "kit exact linear", "products"]  # what did not run says nothing
    assert made["parts"]["products"]["figures"] == {"lines": ["a line"]}
    part = made["parts"]["measure 8b"]
    assert (part["command"], part["seconds"], "log" in part) == (["python", "x"], 40.0, False)
    assert part["figures"]["llama-8b: step 1"] == {"seconds": 0.006}
    assert made["kernel_plans"] == {"llama-8b: open": ["linear(width=4096) -> triton [batch-invariant]"]}
    assert {f["kernel_plan"] for n, f in part["figures"].items() if "open" in n} == {"as of llama-8b: open"}
    assert made["evidence"] == _cells(5)
    assert ledger.count_cases(made) == {"passed": 5, "failed": 0, "refused": 1}


def test_what_a_run_kept_of_the_ledger_is_not_written_again(tmp_path: Path) -> None:
    ledger = script("ledger")
    ledger.add(_summary(), tmp_path)
    old = "2026-11-26T13:00:00Z run"
    second = _summary(name="second")
    second["parts"]["kit exact linear"]["run"] = second["parts"]["products"]["run"] = old
    second["parts"]["measure 8b"]["of"] = {"llama-8b: open": old, "llama-8b fp8: open": old}
    made = json.loads(ledger.add(second, tmp_path).read_text())
    assert list(made["parts"]) == ["measure 8b"]
    assert list(made["parts"]["measure 8b"]["figures"]) == ["llama-8b: step 1"]
    assert made["evidence"] == {}
    third = _summary(name="third", parts={"kit exact linear": {**second["parts"]["kit exact linear"]}})
    with pytest.raises(SystemExit, match="nothing of this run is new"):
        ledger.add(third, tmp_path)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"accelerated": False, "note": "it proves the path"}, "no device: it proves the path"),
        ({"identity": {"commit": None}}, "does not know its commit"),
        ({"parts": {}}, "nothing of this run is new"),
    ],
)
def test_what_is_no_run_on_a_device_is_refused(more: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=why):
        script("ledger").add(_summary(**more), tmp_path)
    assert list(tmp_path.iterdir()) == []


def _runs(*summaries: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"file-{i}": script("ledger").make_entry(s, []) for i, s in enumerate(summaries)}


def _with_evidence(evidence: dict[str, Any], **more: Any) -> dict[str, Any]:
    parts = {"kit": {"state": "passed", "figures": {"passed": 1}, "evidence": evidence}}
    return _summary(parts=parts, **more)


def test_the_newest_run_of_a_card_is_its_evidence_and_cards_add_up() -> None:
    h100 = {"card": "NVIDIA H100"}
    runs = _runs(
        _with_evidence(_cells(3, failed=2)), _with_evidence(_cells(6)), _with_evidence(_cells(10, failed=1), identity=h100),
        _with_evidence(_cells(100), identity={"dirty": True}), _summary(parts={"smoke": {"state": "passed"}}),
    )  # fmt: skip
    made = support.collect_evidence(runs)
    assert list(made) == ["device-cuda"]
    assert made["device-cuda"] == {
        "level": "executed", "platforms": ["cuda"], "cards": ["NVIDIA H100", "NVIDIA H200"],
        "cells": {"linear": {"triton": {"passed": 16, "failed": 1, "refused": 2}}},
    }  # fmt: skip
    assert support.collect_evidence({}) == {}


def test_the_readme_says_where_this_has_run_only_from_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "cpu.json").write_text('{"level": "executed"}')
    (tmp_path / "device-tpu.json").write_text('{"level": "executed"}')  # which no run is behind
    bare = support.make_readme_table({}, tmp_path).splitlines()
    assert [row.split(" | ")[2] for row in bare[2:]] == ["yes", *["not yet"] * 4]
    runs = _runs(_with_evidence(_cells(3, failed=2)), _with_evidence(_cells(812, failed=2)),
                 _with_evidence(_cells(9), identity={"card": "NVIDIA H100", "dirty": True}))  # fmt: skip
    (row,) = [row for row in support.make_readme_table(runs, tmp_path).splitlines() if "`cuda`" in row]
    assert row.split(" | ")[2] == "yes"
    assert "NVIDIA H200, 2026-11-26: 812 cases of the conformance kit pass, 2 fail" in row
    assert "([figures](docs/evidence/device/file-1.json))" in row
    assert "H100" not in row
    assert row.endswith("sm_120 |")


def test_the_readme_is_what_is_generated() -> None:
    text = (ROOT / "README.md").read_text()
    table = support.make_readme_table(support.load_ledger().read_entries())
    assert support.replace_table(text, table) == text, "python ci/support.py --readme"
    assert support.replace_table(f"a\n{support.BEGIN}\nold\n{support.END}\nb", "new") == (
        f"a\n{support.BEGIN}\nnew\n{support.END}\nb"
    )  # fmt: skip
    with pytest.raises(SystemExit, match="has no lines"):
        support.replace_table("no table", table)


def test_evidence_of_devices_is_what_the_ledger_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is committed, and of a made-up ledger; a file that no run is behind goes."""
    there = {p.stem: json.loads(p.read_text()) for p in matrix.FOLDER.glob(f"{support.DEVICE}*.json")}
    assert there == support.collect_evidence(support.load_ledger().read_entries()), "python ci/support.py --ledger"
    ledger = script("ledger")
    (tmp_path / "device-xpu.json").touch()
    (tmp_path / "cpu.json").touch()
    ledger.add(_summary(), tmp_path / "ledger")
    made_up = SimpleNamespace(read_entries=lambda: ledger.read_entries(tmp_path / "ledger"))
    monkeypatch.setattr(support, "load_ledger", lambda: made_up)
    support.take_ledger(tmp_path)
    assert sorted(p.name for p in tmp_path.glob("*.json")) == ["cpu.json", "device-cuda.json"]
    assert matrix.cells([json.loads((tmp_path / "device-cuda.json").read_text())]) == {
        "linear": {"cuda": {"triton": ("executed",)}}
    }


def test_files_of_the_ledger_are_small_and_name_no_folder() -> None:
    for file in script("ledger").FOLDER.glob("*.json"):
        text = file.read_text()
        assert len(text) < 200_000, file.name
        assert str(Path.home()) not in text, file.name
        assert str(ROOT) not in text, file.name
