"""`ci/gpu/run`: which parts there are and in which order, what a budget does, that a run goes on where another ended, and
that a checkout runs where nothing can be installed."""

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
from pathlib import Path
from typing import Any

import pytest
from gpu_scripts import FOLDER, ROOT, script

from thalweg.backends.torch_gpu import linear

ORDER = [
    "smoke", "checks", "kit exact attention", "kit exact linear", "kit no split k", "measure 1b", "measure 8b", "tiles", "load",
    "kit rest 1", "kit rest 2", "measure 1b variant", "measure 8b variant", "sweep", "sanitizer",
]  # fmt: skip


def test_a_gpu_gets_every_part_at_full_size_and_a_processor_in_its_place_small_ones(tmp_path: Path) -> None:
    made = script("parts")
    full, hosted = (made.parts(p, tmp_path) for p in ("cuda", made.HOSTED))
    assert [p.name for p in full.values() if p.default] == ORDER
    assert [name for name in full if name != "kit no split k"] == list(hosted)
    shows = full["kit no split k"]
    assert '--platform-options={"unshown_products": true}' in shows.command
    assert linear.WORKSPACE.items() <= shows.env.items()
    assert {"tests", "kernels", "support", "bench host"} <= {p.name for p in full.values() if not p.default}
    assert "--shapes=llama-8b" in full["measure 8b"].command
    assert "--shapes=tiny" in hosted["measure 8b"].command
    assert ("--variant" in full["measure 1b variant"].command) > ("--variant" in full["measure 1b"].command)
    assert made.accelerated("cuda")
    assert not made.accelerated(made.HOSTED)
    assert all(Path(word).exists() for p in full.values() for word in p.command if word.startswith(str(ROOT)))
    assert set(script("machine").QUICK) < set(ORDER)


def test_the_kit_says_how_far_its_kernels_were_taken_and_is_shared_by_processes(tmp_path: Path) -> None:
    made = script("parts")
    for platform, level, parts in (("cuda", "executed", 5), (made.HOSTED, "hosted", 4)):
        kit = [p for p in made.parts(platform, tmp_path, processes=5).values() if p.name.startswith("kit ")]
        assert len({p.evidence for p in kit}) == len(kit) == parts
        for p in kit:
            assert f"--evidence={p.evidence}" in p.command
            assert f"--evidence-level={level}" in p.command
            assert p.command[p.command.index("-n") + 1] == "5"
            assert {"--dist=worksteal", "--maxfail=30", "timeout=120"} <= set(p.command)
    assert "-n" not in made.parts("tpu", tmp_path, processes=5)["kit rest 1"].command


@pytest.mark.slow
def test_the_parts_of_the_kit_are_all_of_it_and_no_test_twice(tmp_path: Path) -> None:
    made = script("parts")
    seen: list[str] = []
    for p in made.parts("thalweg.backends.torch_gpu.testing:HostGpuPlatform", tmp_path).values():
        if p.name.startswith("kit "):
            whole = [w for w in p.command[: p.command.index("--maxfail=30")] if not w.startswith("--part")]
            share = next(w for w in p.command if w.startswith("--part=")).removeprefix("--part=").split("/")
            part = [] if int(share[1]) == made.HOSTED_SHARE else [f"--part={share[0]}/2"]
            seen += _collected([*whole, *part])
    everything = _collected(made._pytest(made.HOSTED))
    assert len(seen) == len(set(seen))
    assert set(seen) == set(everything)
    assert any("variant" in name for name in seen)


def _collected(command: list[str]) -> list[str]:
    done = subprocess.run(
        [*command, "--collect-only", "-v"], cwd=ROOT, capture_output=True, text=True
    )  # -q twice names no tests
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line for line in done.stdout.splitlines() if "::" in line]
    assert names
    return names


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
    words = script("machine").by_state({n: p["state"] for n, p in parts.items()})
    assert words == "failed: fails; killed: hangs; not run: large"
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


def test_a_carried_cache_of_kernels_is_every_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, file = script("machine"), tmp_path / "said.json"
    monkeypatch.setattr("sys.argv", ["machine.py", "--hosted", "--triton-cache", str(tmp_path)])
    monkeypatch.setenv("TRITON_CACHE_DIR", "somewhere else")
    machine.begin(machine._arguments())
    code = "import json, os, sys; json.dump(os.environ['TRITON_CACHE_DIR'], open(sys.argv[1], 'w'))"
    assert _run([_part("looks", code, str(file), figures=file)], tmp_path, 5_000)["parts"]["looks"]["figures"] == str(tmp_path)
    monkeypatch.setattr("sys.argv", ["machine.py", "--triton-cache", str(tmp_path / "none")])
    with pytest.raises(SystemExit):
        machine._arguments()


def test_evidence_of_the_parts_is_one(tmp_path: Path) -> None:
    todo = []
    for i in (1, 2):
        file = tmp_path / f"{i}.json"
        cells = {"rope": {"fast": {"passed": i, "failed": 0, "refused": 0}}}
        text = json.dumps({"level": "hosted", "platforms": ["x"], "cells": cells})
        code = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
        todo.append(_part(f"kit {i}", code, str(file), text, evidence=file))
    assert _run(todo, tmp_path, 5_000)["evidence"]["cells"] == {"rope": {"fast": {"passed": 3, "failed": 0, "refused": 0}}}


@pytest.mark.slow
def test_a_run_goes_on_with_what_was_not_run_or_was_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the command itself. The parts that are left are `bench host`, which needs no device, and one that passed."""
    earlier = {
        "platform": script("parts").HOSTED, "seconds": 100, "seconds_before": 20,
        "parts": {
            "smoke": {"state": "passed", "seconds": 3.0}, "checks": {"state": "failed", "exit": 1, "log": "checks.log"},
            "bench host": {"state": "running"},
        },
    }  # fmt: skip
    (tmp_path / "before.json").write_text(json.dumps(earlier))
    cache = tmp_path / "triton"
    (cache / "HASH").mkdir(parents=True)
    for name in ("product.json", "product.cubin", "__grp__product.json"):
        (cache / "HASH" / name).touch()
    command = [
        sys.executable, str(FOLDER / "machine.py"), "--hosted", "--budget", "500", "--resume", str(tmp_path / "before.json"),
        "--triton-cache", str(cache), "--only", "smoke", "checks", "bench host",
    ]  # fmt: skip
    env = {**os.environ, "OUT": str(tmp_path / "out"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 1, done.stderr  # as the checks failed
    assert ": failed: checks; see " in done.stdout
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["parts"]["smoke"] == earlier["parts"]["smoke"]
    assert summary["parts"]["checks"] == earlier["parts"]["checks"]
    assert summary["parts"]["bench host"]["state"] == "passed"
    assert summary["parts"]["measure 8b"] == {"state": "not run", "why": "not asked for"}
    assert summary["seconds_before"] == 120
    assert summary["triton_cache"] == {"folder": str(cache), "kernels_before": 1, "kernels_after": 1}
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["results.tar.gz", "summary.json"]


def test_what_is_no_summary_of_this_platform_is_refused_in_words(tmp_path: Path) -> None:
    machine, file = script("machine"), tmp_path / "summary.json"
    for text, why in (
        ("", "is no summary"), ("[]", "is no summary"), ('{"platform": "cuda", "parts": {"a": 3}}', "is no summary"),
        ('{"platform": "rocm", "parts": {}}', "is of platform 'rocm', this run is on 'cuda'"),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(SystemExit, match=why):
            machine.resumed(file, "cuda")
    with pytest.raises(SystemExit, match="is no summary"):
        machine.resumed(tmp_path / "none.json", "cuda")


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


@pytest.mark.slow
def test_the_checks_of_a_gpu_hold_for_its_device_on_the_processor(tmp_path: Path) -> None:
    """Greedy and drawn tokens are the reference's, captured steps are eager ones bit by bit, and a crowd changes nothing."""
    command = [FOLDER / "run", "--here", "--hosted", "--only", "smoke"]
    env = {**os.environ, "OUT": str(tmp_path), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert not summary["accelerated"]
    assert summary["parts"]["smoke"]["figures"]["holds"]
    report = script("checks").check(script("parts").HOSTED, requests=4, tokens=10)["checks"]
    assert {name: c["holds"] for name, c in report.items()} == dict.fromkeys(("greedy", "random", "crowd", "captured"), True)
