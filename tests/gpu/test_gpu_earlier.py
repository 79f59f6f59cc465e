"""A run goes on by figure: what earlier runs found counts if it is of this card, software and kernels, and nothing else is
mixed into a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_scripts import FOLDER, ROOT, script

NOW = {
    "platform": "cuda", "card": "NVIDIA H200", "driver": "580", "torch": "2.11.0+cu130", "triton": "3.6.0", "commit": "a" * 40,
    "dirty": False, "kernels": "0123456789abcdef",
}  # fmt: skip


def _part(**more: Any) -> dict[str, Any]:
    return {"state": "passed", "seconds": 20.0, **more}


def _steps(*counts: int, seconds: float = 0.01) -> dict[str, Any]:
    return {f"llama-8b: step {n}": {"seconds": seconds} for n in counts}


def _summary(path: Path, date: str, parts: dict[str, Any], **other: Any) -> Path:
    said = {"name": f"{date} run", "date": date, "platform": "cuda", "identity": {**NOW, **other}, "parts": parts}
    path.write_text(json.dumps(said))
    return path


def _wants(*counts: int, **more: Any) -> Any:
    wanted = tuple(f"llama-8b: step {n}" for n in counts)
    return script("parts").Part("measure 8b", ["measure"], 1, 9, wanted=wanted, resumes=True, **more)


def test_figures_of_another_card_software_or_kernels_are_apart_and_said_to_be(tmp_path: Path) -> None:
    earlier, identity = script("earlier"), script("identity")
    figures = {"measure 8b": _part(figures=_steps(1))}
    others = {
        "card": ("NVIDIA H100 80GB HBM3", identity.CARD), "triton": ("3.7.1", identity.SOFTWARE),
        "driver": ("590", identity.SOFTWARE), "kernels": ("fedcba9876543210", identity.KERNELS),
        "platform": ("rocm", identity.CARD), "commit": ("b" * 40, ""), "dirty": (True, ""),
    }  # fmt: skip
    for name, (value, words) in others.items():
        file = _summary(tmp_path / f"{name}.json", "2026-01-01", figures, **{name: value})
        known = earlier.join(earlier.read(file), NOW)
        assert list(known.apart) == ([words] if words else []), name
        assert bool(known.parts) == (not words), name
        assert earlier.is_settled(_wants(1), known.parts.get("measure 8b"), NOW) == (not words)
    old = tmp_path / "old.json"
    old.write_text(json.dumps({"platform": "cuda", "parts": figures}))  # of a run that did not say what it was
    assert list(earlier.join(earlier.read(old), NOW).apart) == [identity.KERNELS]


def test_two_cards_are_never_in_one_line_of_a_table(tmp_path: Path) -> None:
    """Also where a summary of this card has kept another's apart, and is read again."""
    earlier, report = script("earlier"), script("report")
    here = _summary(tmp_path / "a.json", "2026-01-02", {"measure 8b": _part(figures=_steps(1, seconds=0.005))})
    there = _summary(
        tmp_path / "b.json", "2026-01-03", {"measure 8b": _part(figures=_steps(1, 64, seconds=0.009))}, card="NVIDIA H100"
    )
    known = earlier.join([*earlier.read(here), *earlier.read(there)], NOW)
    assert known.parts["measure 8b"]["figures"] == _steps(1, seconds=0.005)
    summary = {
        "name": "now", "date": "2026-01-04", "identity": NOW, "parts": known.parts,
        "apart": {words: [earlier.slim(r) for r in runs] for words, runs in known.apart.items()},
    }  # fmt: skip
    lines = report.table(summary).splitlines()
    assert [line for line in lines if "NVIDIA H100" in line] == [
        "of another card, NVIDIA H100, 2026-01-03 run: llama-8b: step 1 9.00 ms, llama-8b: step 64 9.00 ms"
    ]
    assert any("steps of 1: 5.00 ms" in line and "9.00" not in line for line in lines)
    again = tmp_path / "c.json"
    again.write_text(json.dumps(summary))
    once_more = earlier.join([*earlier.read(again), *earlier.read(there)], NOW)
    assert once_more.parts["measure 8b"]["figures"] == _steps(1, seconds=0.005)
    assert [[r.name for r in runs] for runs in once_more.apart.values()] == [["2026-01-03 run"]]
    on_the_other = earlier.join(earlier.read(again), {**NOW, "card": "NVIDIA H100"})
    assert set(on_the_other.parts["measure 8b"]["figures"]) == {"llama-8b: step 1", "llama-8b: step 64"}


def test_a_killed_part_goes_on_with_the_figures_that_it_lacks(tmp_path: Path) -> None:
    earlier = script("earlier")
    killed = _part(state="running", figures=_steps(1, 8), about={"dtype": "bfloat16"})
    known = earlier.join(earlier.read(_summary(tmp_path / "a.json", "2026-01-01", {"measure 8b": killed})), NOW)
    found = known.parts["measure 8b"]
    assert found["state"] == "killed"
    assert not earlier.is_settled(_wants(1, 8, 64), found, NOW)
    assert earlier.carry(_wants(1, 8, 64), found) == {"dtype": "bfloat16", "figures": _steps(1, 8)}
    more = _summary(tmp_path / "b.json", "2026-01-02", {"measure 8b": _part(figures=_steps(64))})
    both = earlier.join([*earlier.read(more), *earlier.read(tmp_path / "a.json")], NOW).parts["measure 8b"]
    assert both["figures"] == _steps(1, 8, 64)
    assert both["of"] == {
        "llama-8b: step 1": "2026-01-01 run", "llama-8b: step 8": "2026-01-01 run", "llama-8b: step 64": "2026-01-02 run",
    }  # fmt: skip
    assert earlier.is_settled(_wants(1, 8, 64), both, NOW)
    assert not earlier.is_settled(_wants(1, 8, 64, 256), both, NOW)  # another plan asks for more


def test_of_a_figure_the_newest_run_counts_whatever_the_order_of_files(tmp_path: Path) -> None:
    earlier = script("earlier")
    runs = [
        run
        for date in ("2026-03-01", "2026-01-01", "2026-02-01")
        for run in earlier.read(
            _summary(tmp_path / f"{date}.json", date, {"measure 8b": _part(figures=_steps(1, seconds=int(date[5:7])))})
        )
    ]
    assert earlier.join(runs, NOW).parts["measure 8b"]["figures"] == _steps(1, seconds=3)


def test_a_failure_counts_for_its_commit_and_what_failed_is_measured_again() -> None:
    earlier = script("earlier")
    found = {"state": "failed", "commit": NOW["commit"], "figures": {**_steps(1), "llama-8b: step 8": {"error": "no"}}}
    assert earlier.is_settled(_wants(1, 8), found, NOW)
    assert not earlier.is_settled(_wants(1, 8), found, {**NOW, "commit": "b" * 40})
    assert not earlier.is_settled(_wants(1, 8), found, {**NOW, "dirty": True})
    assert earlier.carry(_wants(1, 8), found) == _steps(1)
    wrong = {"state": "failed", "figures": {"greedy": {"holds": True}, "crowd": {"holds": False}, "x": {"holds": None}}}
    assert earlier.carry(_wants(), wrong) == {"greedy": {"holds": True}, "x": {"holds": None}}
    assert earlier.carry(script("parts").Part("load", [], 1, 9), wrong) is None
    assert earlier.is_settled(_wants(1), {"state": "not here"}, NOW)


def test_what_was_never_measured_on_this_card_comes_before_what_changed(tmp_path: Path) -> None:
    earlier, part = script("earlier"), script("parts").Part
    parts = [part(n, [], 1, 9, judges=n in "ab") for n in "abcde"]
    old = _summary(tmp_path / "a.json", "2026-01-01", dict.fromkeys("ac", _part()), kernels="fedcba9876543210")
    other = _summary(tmp_path / "b.json", "2026-01-02", dict.fromkeys("d", _part()), card="NVIDIA H100")
    known = earlier.join([*earlier.read(old), *earlier.read(other)], NOW)
    assert [p.name for p in earlier.order_by_age(parts, known)] == ["a", "b", "d", "e", "c"]
    assert earlier.order_by_age(parts, earlier.Known()) == parts


def test_what_is_no_summary_of_a_run_is_refused_in_words(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    for text in ("", "[]", '{"platform": "cuda", "parts": {"a": 3}}', '{"platform": "cuda"}'):
        file.write_text(text)
        with pytest.raises(SystemExit, match="is no summary"):
            script("earlier").read(file)
    with pytest.raises(SystemExit, match="is no summary"):
        script("earlier").read(tmp_path / "none.json")


def test_auto_reads_the_ledger_and_what_a_pack_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = script("earlier")
    ledger, pack = tmp_path / "device", tmp_path / "pack"
    (pack / "summaries").mkdir(parents=True)
    ledger.mkdir()
    monkeypatch.setattr(earlier, "LEDGER", ledger)
    for file in (ledger / "b.json", ledger / "a.json", pack / "summaries" / "1.json"):
        file.touch()
    assert earlier.find_sources("auto", None) == [ledger / "a.json", ledger / "b.json"]
    assert earlier.find_sources("auto", pack) == [ledger / "a.json", ledger / "b.json", pack / "summaries" / "1.json"]
    assert earlier.find_sources("x.json", pack) == [Path("x.json")]


def test_a_second_command_goes_on_with_what_the_first_left(tmp_path: Path) -> None:
    machine, plans, parts = (script(n) for n in ("machine", "plans", "parts"))
    known = plans.make_parts("quick", parts.HOSTED, tmp_path)

    def asked(*words: str) -> list[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["machine.py", "--hosted", "--plan=quick", *words])
            return machine._select(machine._arguments(), known)  # type: ignore[no-any-return]

    first, second = ([n for n, p in known.items() if p.command == c] for c in (1, 2))
    assert asked() == first
    assert asked("--command=2") == second
    assert asked("--command=2", "--resume", "auto") == [*first, *second]
    with pytest.raises(SystemExit):
        asked("--command=3")


def test_the_hash_of_kernels_follows_their_sources_and_nothing_else(tmp_path: Path) -> None:
    identity = script("identity")
    for name in ("thalweg/backends/cuda/a.py", "thalweg/hal/ops/b.py", "thalweg/engine/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    first = identity.hash_sources(tmp_path)
    (tmp_path / "thalweg/engine/c.py").write_text("changed")
    (tmp_path / "thalweg/backends/cuda/a.so").write_text("made of sources")
    (tmp_path / "thalweg/backends/__pycache__").mkdir()
    (tmp_path / "thalweg/backends/__pycache__/x.txt").touch()
    assert identity.hash_sources(tmp_path) == first
    (tmp_path / "thalweg/hal/ops/b.py").rename(tmp_path / "thalweg/hal/ops/d.py")
    renamed = identity.hash_sources(tmp_path)
    (tmp_path / "thalweg/hal/ops/d.py").write_text("changed")
    assert len({first, renamed, identity.hash_sources(tmp_path)}) == 3


def test_a_pack_says_the_commit_where_there_is_no_repository_and_must_be_of_these_sources(tmp_path: Path) -> None:
    identity, pack = script("identity"), tmp_path / "pack"
    pack.mkdir()
    assert identity.read_sources(tmp_path) == {"commit": None, "dirty": None, "kernels": identity.hash_sources(tmp_path)}
    said = {"commit": "c" * 40, "dirty": False, "kernels": identity.hash_sources(tmp_path)}
    (pack / "identity.json").write_text(json.dumps(said))
    assert identity.read_sources(tmp_path, pack) == said
    (pack / "identity.json").write_text(json.dumps({**said, "kernels": "other"}))
    with pytest.raises(SystemExit, match="was made of other sources"):
        identity.read_sources(tmp_path, pack)


@pytest.mark.nightly
def test_a_second_run_with_what_the_first_found_runs_nothing(tmp_path: Path) -> None:
    """Through the command itself, of a part that measures and one that judges. A third, of another card, runs both again."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(FOLDER / "machine.py"), "--hosted", "--plan=quick", "--only", "smoke", "measure 8b fp8"]

    def run(name: str, *words: str) -> tuple[str, dict[str, Any]]:
        done = subprocess.run([*command, *words], capture_output=True, text=True, env={**env, "OUT": str(tmp_path / name)})
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(p.name for p in (tmp_path / name).iterdir()) == ["results.tar.gz", "summary.json"]
        return done.stdout, json.loads((tmp_path / name / "summary.json").read_text())

    said, first = run("1")
    assert said.count("\n== ") == 2
    said, second = run("2", "--resume", str(tmp_path / "1" / "summary.json"))
    assert "\n== " not in said
    for name in ("smoke", "measure 8b fp8"):
        assert second["parts"][name]["figures"] == first["parts"][name]["figures"]
    assert second["parts"]["checks"] == {"state": "not run", "why": "not asked for"}
    first["identity"]["card"] = "another"
    (tmp_path / "other.json").write_text(json.dumps(first))
    said, third = run("3", "--resume", str(tmp_path / "other.json"))
    assert said.count("\n== ") == 2
    assert "of another card, another" in said
    assert list(third["apart"]) == ["of another card"]
