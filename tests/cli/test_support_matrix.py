"""The support matrix says what runs of the kit said, and the page that is committed is what is generated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import support

from thalweg.cli import backends, matrix
from thalweg.hal.testing.evidence import LEVELS, Cells, kernel_of, note, write

ROOT = Path(__file__).parents[2]


class _Named:
    def __init__(self, name: str) -> None:
        self.name = name


def _file(level: str, platforms: list[str], op: str, kernel: str, passed: int = 1, failed: int = 0) -> dict[str, Any]:
    return {"level": level, "platforms": platforms, "cells": {op: {kernel: {"passed": passed, "failed": failed, "refused": 0}}}}


def test_the_page_is_what_is_generated() -> None:
    assert (ROOT / "docs" / "evidence" / "support.md").read_text() == matrix.page(matrix.evidence()), (
        "python ci/support.py, or thalweg backends --matrix > docs/evidence/support.md"
    )


def test_every_level_a_kernel_reached_is_shown_and_a_failure_hides_behind_nothing() -> None:
    files = [
        _file("compiled", ["a", "b"], "rope", "fast"), _file("interpreted", ["a"], "rope", "fast"),
        _file("interpreted", ["a"], "rope", "other"), _file("executed", ["b"], "rope", "reference"),
        _file("executed", ["c"], "rope", "fast", passed=9, failed=1), _file("interpreted", ["c"], "rope", "fast"),
        _file("executed", ["c"], "rope", "good"), _file("executed", ["d"], "rope", "never", passed=0),
        _file("hosted", ["e"], "rope", "reference"),
    ]  # fmt: skip
    assert matrix.cells(files) == {
        "rope": {
            "a": {"fast": ("interpreted", "compiled"), "other": ("interpreted",)}, "b": {"fast": ("compiled",)},
            "c": {"fast": ("FAILS",), "good": ("executed",)}, "e": {"reference": ("reference",)},
        }
    }  # fmt: skip
    table = matrix.markdown(files)
    assert (
        "| rope | interpreted: other<br>interpreted, compiled: fast | compiled: fast | FAILS: fast<br>executed: good |" in table
    )


def test_what_was_compiled_counts_for_the_ops_that_launch_it_on_the_platform_of_its_target() -> None:
    launches = {
        "norm[4096]": {("rms_norm", "triton"), ("add_rms_norm", "triton")},
        "attend[8b decode]": {("attention", "paged")},
    }
    spilled = ["spills 900, at most 64"]
    outcomes = [
        {"launch": launch, "arch": arch, "problems": problems}
        for launch, arch, problems in (
            ("norm[4096]", "sm_90", []), ("norm[4096]", "sm_80", []), ("attend[8b decode]", "gfx942", spilled),
            ("norm[4096]", "xe2", []),
        )
    ]  # fmt: skip
    files = support.compiled(outcomes, launches)
    assert sorted(files) == ["triton-compiled-cuda", "triton-compiled-rocm"]
    assert files["triton-compiled-cuda"]["targets"] == ["sm_90", "sm_80"]
    made = matrix.cells(list(files.values()))
    assert made == {
        "rms_norm": {"cuda": {"triton": ("compiled",)}}, "add_rms_norm": {"cuda": {"triton": ("compiled",)}},
        "attention": {"rocm": {"paged": ("FAILS",)}},
    }  # fmt: skip
    assert "Compiled for: cuda: sm_90, sm_80; rocm: gfx942." in matrix.markdown(list(files.values()))
    with pytest.raises(SystemExit, match="compile again"):
        support.compiled([{"launch": "gone[1]", "arch": "sm_90", "problems": []}], launches)


def test_every_run_behind_the_matrix_has_its_file() -> None:
    """Evidence that no command makes anew would grow old unseen; what a device showed needs the device."""
    there = {p.stem for p in matrix.FOLDER.glob("*.json") if not p.stem.startswith(support.DEVICE)}
    assert there == {*support.RUNS, *(f"triton-compiled-{p}" for p in support.COMPILED.values())}


def test_the_kit_counts_by_kernel_what_it_ran(tmp_path: Path) -> None:
    cells: Cells = {}
    case = (_Named("rope"), None, "float32", _Named("fast"))
    for params, outcome in (
        ({"case": case}, "passed"), ({"case": case}, "failed"), ({"case": (*case[:3], None)}, "passed"),
        ({"attention": _Named("paged"), "dtype": "float32"}, "skipped"),
        ({"dtype": "float32"}, "failed"), ({"case": None}, "skipped"),
    ):  # fmt: skip
        if what := kernel_of(params):
            note(cells, what, outcome)
    write(tmp_path / "x.json", cells, "executed", ["b", "a"])
    (read,) = matrix.evidence(tmp_path)
    assert read == {
        "level": "executed", "platforms": ["a", "b"],
        "cells": {
            "rope": {"fast": {"passed": 1, "failed": 1, "refused": 0}, "reference": {"passed": 1, "failed": 0, "refused": 0}},
            "attention": {"paged": {"passed": 0, "failed": 0, "refused": 1}},
        },
    }  # fmt: skip
    with pytest.raises(ValueError, match="evidence-level"):
        write(tmp_path / "x.json", cells, "guessed", ["a"])


def test_a_run_on_a_device_is_taken_in_and_one_on_a_processor_is_not() -> None:
    evidence = _file("executed", ["cuda"], "rope", "triton")
    assert support.from_device({"accelerated": True, "platform": "cuda", "evidence": evidence}) == ("device-cuda", evidence)
    with pytest.raises(SystemExit, match="no device: it proves the path"):
        support.from_device({"accelerated": False, "platform": "x", "note": "it proves the path", "evidence": evidence})
    with pytest.raises(SystemExit, match="no part of the kit"):
        support.from_device({"accelerated": True, "platform": "cuda"})


def test_levels_are_the_same_words_in_the_kit_and_in_the_matrix() -> None:
    assert tuple(matrix.LEVELS) == LEVELS


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert backends.run(["--matrix"]) == 0
    assert "| attention |" in capsys.readouterr().out
