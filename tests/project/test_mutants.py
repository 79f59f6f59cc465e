"""The table of injected faults fits the code, and the command that runs it can tell a caught fault from one that survives."""

from __future__ import annotations

import ast
from pathlib import Path

import mutants
import pytest

ROOT = Path(__file__).parents[2]
FAULTS, TESTS = mutants.table()
CHEAP = ("fewer features cover more", "strict kernels fall back all the same", "auto takes the worst")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_every_fault_still_has_its_place_and_leaves_a_program(fault: mutants.Fault) -> None:
    text = (ROOT / fault.file).read_text()
    assert text.count(fault.old) == 1, f"{fault.file} has changed: bring ci/mutants.toml up to date"
    assert fault.new != fault.old
    if fault.file.endswith(".py"):
        ast.parse(text.replace(fault.old, fault.new))


def test_tests_named_are_files_that_exist() -> None:
    for arguments in TESTS.values():
        for word in arguments.split():
            assert not word.startswith("tests/") or (ROOT / word).is_file(), word


@pytest.mark.slow
def test_cheap_faults_are_caught_and_a_change_that_changes_nothing_survives() -> None:
    faults = [f for f in FAULTS if f.name in CHEAP]
    assert len(faults) == len(CHEAP)
    same = mutants.Fault(
        "nothing", "thalweg/hal/op.py", "refused.append((k.name, why))", "refused += [(k.name, why)]", "binder"
    )
    gone = mutants.Fault("gone", "thalweg/hal/op.py", "no such line", "", "binder")
    told: list[str] = []
    outcomes = mutants.examine([*faults, same, gone], TESTS, 1, told.append)
    assert [o.verdict for o in outcomes] == ["caught"] * 3 + [
        "survived",
        "the text to replace occurs 0 times in thalweg/hal/op.py",
    ]
    assert len(told) == 5
    line, good = mutants.verdict(outcomes)
    assert line == "5 faults: 3 caught (0 by a time limit), 1 survived, 1 in error: 60.0%"
    assert not good


@pytest.mark.parametrize(
    ("verdicts", "good"),
    [
        (["caught"] * 20, True), (["caught"] * 19 + ["survived"], True), (["caught"] * 18 + ["survived"] * 2, False),
        (["caught"] * 19 + ["timed out"], True), (["caught"] * 99 + ["pytest ended with 4: no such file"], False), ([], False),
    ],
)  # fmt: skip
def test_five_in_a_hundred_may_survive_and_none_may_be_in_error(verdicts: list[str], good: bool) -> None:
    assert mutants.verdict([mutants.Outcome("n", "f", "t", v, 1.0) for v in verdicts])[1] is good


@pytest.mark.slow
def test_tests_that_fail_without_a_fault_prove_nothing() -> None:
    fault = mutants.Fault("any", "thalweg/hal/op.py", "refused.append((k.name, why))", "pass", "wrong")
    with pytest.raises(SystemExit, match=r"do not pass without a fault \(exit status 4\)"):
        mutants.examine([fault], {"wrong": "tests/no_such_file.py"}, 1, lambda line: None)
