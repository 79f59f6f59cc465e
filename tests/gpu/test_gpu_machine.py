"""`ci/gpu/run`: what a budget does to parts, what a run leaves behind, when it is green, and that a checkout runs where nothing
can be installed."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gpu_scripts import FOLDER, ROOT, script


def _part(name: str, code: str, *words: str, least: float = 0, most: float = 600, **more: Any) -> Any:
    return script("parts").Part(name, [sys.executable, "-c", code, *words], least, most, **more)


def _run(todo: list[Any], out: Path, budget: float, summary: dict[str, Any] | None = None) -> dict[str, Any]:
    work = out / "work"
    work.mkdir(exist_ok=True)
    summary = summary or {"platform": "x", "parts": {p.name: {"state": "not run"} for p in todo}}
    clock = script("running").Clock(time.monotonic(), budget, 0)
    script("machine").run_all(todo, summary, clock, out, work, 3600)
    written: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return written


HANGS = """
import fcntl, pathlib, subprocess, sys, time
if len(sys.argv) > 2:
    held = open(sys.argv[1], "w")
    fcntl.flock(held, fcntl.LOCK_EX)
    pathlib.Path(sys.argv[2]).touch()
    time.sleep(600)
lock = sys.argv[1]
child = subprocess.Popen([sys.executable, lock + ".py", lock, lock + ".ready"])
while not pathlib.Path(lock + ".ready").exists():
    time.sleep(0.01)
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_part_that_hangs_is_ended_with_all_it_started_and_named_and_what_does_not_fit_is_not_run(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.with_name("lock.py").write_text(HANGS)
    figures = tmp_path / "saw.json"
    looks = "import shutil, sys; shutil.copy(*sys.argv[1:])"
    todo = [
        _part("looks", looks, str(tmp_path / "summary.json"), str(figures), figures=figures),
        _part("fails", "print('what happened'); raise SystemExit(3)"),
        _part("elsewhere", "raise SystemExit(77)"),
        _part("hangs", HANGS, str(lock), most=12),
        _part("large", "pass", least=10_000),
        _part("last", "pass"),
    ]
    parts = _run(todo, tmp_path, 5_000)["parts"]
    assert {n: p["state"] for n, p in parts.items()} == {
        "looks": "passed", "fails": "failed", "elsewhere": "not here", "hangs": "killed", "large": "not run", "last": "passed",
    }  # fmt: skip
    assert parts["looks"]["figures"]["parts"]["looks"]["state"] == "running"  # it was said before the part ran
    assert "10000 s or more" in parts["large"]["why"]
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # only the dead let go of it
    with tarfile.open(tmp_path / "results.tar.gz") as tar:
        assert {"results/fails.log", "results/hangs.log"} <= set(tar.getnames())
    table = script("report").table({"parts": parts, "seconds": 1.0})
    assert any(line.startswith("hangs") and "killed" in line for line in table.splitlines())
    assert script("machine").judge(parts, todo) == (True, "failed: fails; killed: hangs; not run: large")
    assert any(line.startswith("large") and "not run" in line for line in table.splitlines())


def test_nothing_starts_when_the_budget_is_spent(tmp_path: Path) -> None:
    parts = _run([_part("first", "raise SystemExit(1)", least=5)], tmp_path, 1)["parts"]
    assert parts["first"]["state"] == "not run"


@pytest.mark.slow
def test_an_ended_part_may_say_what_it_knows(tmp_path: Path) -> None:
    """The kit writes its evidence, the figures those that are known. Also where the run itself ignores interrupts (nohup)."""
    file = tmp_path / "late.json"
    code = "\n".join([
        "import pathlib, sys, time", "try:", "    print('asleep', flush=True); time.sleep(600)", "except KeyboardInterrupt:",
        "    pathlib.Path(sys.argv[1]).write_text('{\"known\": 1}')",
    ])  # fmt: skip
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        parts = _run([_part("asks", code, str(file), most=16, figures=file)], tmp_path, 5_000)["parts"]
    finally:
        signal.signal(signal.SIGINT, before)
    assert (parts["asks"]["state"], parts["asks"]["figures"]) == ("killed", {"known": 1})


def _begin(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    machine = script("machine")
    monkeypatch.setattr("sys.argv", ["machine.py", "--hosted", *words])
    summary, _ = machine.begin(machine._arguments(), script("parts").HOSTED, "a note", {})
    return summary  # type: ignore[no-any-return]


def test_a_carried_cache_of_kernels_is_every_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "said.json"
    monkeypatch.setenv("TRITON_CACHE_DIR", "somewhere else")
    summary = _begin(monkeypatch, "--triton-cache", str(tmp_path))
    assert summary["triton_cache"]["kernels_before"] == 0
    code = "import json, os, sys; json.dump(os.environ['TRITON_CACHE_DIR'], open(sys.argv[1], 'w'))"
    assert _run([_part("looks", code, str(file), figures=file)], tmp_path, 5_000)["parts"]["looks"]["figures"] == str(tmp_path)
    monkeypatch.setattr("sys.argv", ["machine.py", "--triton-cache", str(tmp_path / "none")])
    with pytest.raises(SystemExit):
        script("machine")._arguments()


def test_a_run_is_red_for_what_is_wrong_and_not_for_what_is_slow_or_only_a_lead() -> None:
    verdict, part = script("machine").judge, partial(_part, code="pass")
    judge, speed, lead = part("judge", judges=True), part("speed"), part("lead", lead=True)

    def of(**states: str) -> tuple[bool, str]:
        return verdict({n: {"state": s} for n, s in states.items()}, [judge, speed, lead])  # type: ignore[no-any-return]

    assert of(judge="passed", speed="passed", lead="not here") == (False, "")
    assert of(judge="passed", speed="killed", lead="failed") == (False, "failed: lead (a lead); killed: speed")
    assert of(judge="passed", speed="not run", lead="killed")[0] is False
    assert of(judge="passed", speed="failed", lead="passed") == (True, "failed: speed")
    for state in ("failed", "killed", "not run"):
        assert of(judge=state, speed="passed", lead="passed") == (True, f"{state}: judge")


def test_commands_in_a_summary_name_no_folder_of_the_machine(tmp_path: Path) -> None:
    shown = script("machine").shorten
    words = [sys.executable, str(FOLDER / "smoke.py"), f"--output-json={tmp_path / 'smoke.json'}", f"--pack={Path.home()}/pack"]
    assert shown(words, tmp_path) == ["python", "./ci/gpu/smoke.py", "--output-json=$OUT/smoke.json", "--pack=~/pack"]


GOES_ON = """
import json, pathlib, sys
*_, out, have = sys.argv
report = json.loads(pathlib.Path(have.removeprefix("--have=")).read_text())
report["figures"]["b"] = {"seconds": 2.0}
pathlib.Path(out).write_text(json.dumps(report))
"""


def test_a_part_that_was_ended_is_given_what_it_found_and_says_which_figures_are_old(tmp_path: Path) -> None:
    file = tmp_path / "part.json"
    before = {
        "state": "killed", "run": "yesterday", "about": {"dtype": "bfloat16"}, "of": {"a": "yesterday", "c": "yesterday"},
        "figures": {"a": {"seconds": 1.0}, "c": {"error": "no"}},
    }  # fmt: skip
    todo = [_part("goes on", GOES_ON, str(file), figures=file, resumes=True), _part("late", "pass", least=10_000, resumes=True)]
    summary = {"platform": "x", "parts": {"goes on": dict(before), "late": dict(before)}}
    parts = _run(todo, tmp_path, 5_000, summary)["parts"]
    assert parts["goes on"]["state"] == "passed"
    assert parts["goes on"]["figures"] == {"a": {"seconds": 1.0}, "b": {"seconds": 2.0}}
    assert parts["goes on"]["about"] == {"dtype": "bfloat16"}
    assert parts["goes on"]["of"] == {"a": "yesterday"}
    assert (parts["late"]["state"], parts["late"]["figures"]) == ("not run", before["figures"])  # which the next run needs


@pytest.mark.slow
def test_evidence_of_the_parts_is_one(tmp_path: Path) -> None:
    todo = []
    for i in (1, 2):
        file = tmp_path / f"{i}.json"
        cells = {"rope": {"fast": {"passed": i, "failed": 0, "refused": 0}}}
        text = json.dumps({"level": "hosted", "platforms": ["x"], "cells": cells})
        code = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
        todo.append(_part(f"kit {i}", code, str(file), text, evidence=file))
    assert _run(todo, tmp_path, 5_000)["evidence"]["cells"] == {"rope": {"fast": {"passed": 3, "failed": 0, "refused": 0}}}


def test_counts_of_tests_name_those_that_failed(tmp_path: Path) -> None:
    file = tmp_path / "x.xml"
    file.write_text(
        '<testsuites><testsuite tests="4" failures="1" errors="1" skipped="1"><testcase name="a"/><testcase name="b">'
        '<failure message="differs by 3&#10;and more"/></testcase><testcase name="c"><error message="no device"/></testcase>'
        '<testcase name="d"><skipped/></testcase></testsuite></testsuites>'
    )
    assert script("running").counts(file) == {
        "passed": 1, "failed": 2, "skipped": 1, "failures": ["b: differs by 3", "c: no device"],
    }  # fmt: skip


def test_an_archive_keeps_the_end_of_a_long_log(tmp_path: Path) -> None:
    running = script("running")
    (tmp_path / "a.log").write_text("x" * running.LOG + "the end")
    with tarfile.open(fileobj=io.BytesIO(running.archive(tmp_path))) as tar:
        kept = tar.extractfile("results/a.log")
        assert kept is not None
        text = kept.read()
    assert text.endswith(b"the end")
    assert len(text) < running.LOG + 100


def test_a_platform_that_cannot_run_here_is_refused_and_without_one_the_processor_says_so() -> None:
    machine = script("machine")
    with pytest.raises(SystemExit, match="'cuda' cannot run here"):
        machine.choose("cuda", {"cuda": 0, "cpu": 10})
    assert machine.choose(None, {"cuda": 100, "xpu": 60, "cpu": 10})[0] == "cuda"
    name, note = machine.choose(None, {"cuda": 0, "cpu": 10, "reference": 2})
    assert name == "cpu"
    assert "the CPU's" in note


def test_a_checkout_that_is_not_installed_finds_its_platforms(tmp_path: Path) -> None:
    """In an interpreter that sees no installed packages."""
    folder = str(script("here").metadata(tmp_path))
    code = "\n".join([
        "import json, sys", f"sys.path = [{folder!r}] + [p for p in sys.path if 'site-packages' not in p]",
        "from importlib.metadata import entry_points",
        "print(json.dumps([p.name for p in entry_points(group='thalweg.platforms')]))",
    ])  # fmt: skip
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert sorted(json.loads(done.stdout)) == ["cpu", "cuda", "null", "reference", "rocm", "tpu", "xpu"]


def test_what_is_missing_is_named_before_anything_runs() -> None:
    command = [sys.executable, "-S", str(FOLDER / "here.py"), "anything.py"]  # -S: no packages at all
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 1
    assert "has no torch, numpy, msgspec" in done.stderr
    assert "carry wheels (--wheels DIR" in done.stderr


def _wheel(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as z:
        z.writestr(f"{name}.py", text)
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
def test_carried_wheels_are_there_for_the_script_and_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = script("here")
    _wheel(tmp_path / "wheels", "carried_word", "said = 'from a wheel'")
    site = here.unpacked(tmp_path / "wheels", tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-c", "import carried_word; print(carried_word.said)"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    )  # fmt: skip
    assert done.stdout == "from a wheel\n"
    monkeypatch.setattr(here.subprocess, "run", lambda *a, **k: pytest.fail("they are there already"))
    assert here.unpacked(tmp_path / "wheels", tmp_path / "site") == site


@pytest.mark.slow
def test_wheels_that_are_not_there_or_do_not_fit_are_refused(tmp_path: Path) -> None:
    here = script("here")
    with pytest.raises(SystemExit, match="there is no folder 'nowhere'"):
        here.taken(["machine.py", "--wheels", "nowhere"])
    with pytest.raises(SystemExit, match="there is no folder ''"):
        here.taken(["machine.py", "--wheels"])
    with pytest.raises(SystemExit, match="holds no wheels"):
        here.unpacked(tmp_path, tmp_path / "site")
    (tmp_path / "other-1-cp27-cp27m-win32.whl").write_bytes(b"")
    with pytest.raises(SystemExit, match="not a supported wheel"):
        here.unpacked(tmp_path, tmp_path / "site")
    assert here.taken(["machine.py", f"--wheels={tmp_path}", "--hosted"]) == (tmp_path.resolve(), ["machine.py", "--hosted"])


def test_every_wheel_of_the_lists_has_a_version_in_the_constraints() -> None:
    pinned = {
        line.partition("==")[0].lower().replace("_", "-") for line in (ROOT / "ci/constraints.txt").read_text().splitlines()
    }
    for file in ("wheels.txt", "wheels-server.txt"):
        names = [n for n in (FOLDER / file).read_text().splitlines() if n and not n.startswith("#")]
        assert names
        assert set(names) <= pinned


@pytest.mark.nightly
def test_the_checks_of_a_gpu_hold_for_its_device_on_the_processor(tmp_path: Path) -> None:
    """Greedy and drawn tokens are the reference's, captured steps are eager ones bit by bit, and neither a crowd nor a
    neighbour that arrives changes anything."""
    command = [FOLDER / "run", "--here", "--hosted", "--only", "smoke"]
    env = {**os.environ, "OUT": str(tmp_path), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert not summary["accelerated"]
    assert summary["parts"]["smoke"]["about"]["holds"]
    assert summary["identity"]["card"].startswith("host: ")
    checks = script("checks")
    report = dict(checks.check(script("parts").HOSTED, requests=4, tokens=10))
    assert {name: c["holds"] for name, c in report.items()} == dict.fromkeys(checks.CHECKS, True)
    assert list(dict(checks.check(script("parts").HOSTED, 2, 6, have=checks.CHECKS[:-1]))) == ["captured"]
