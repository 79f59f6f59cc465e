"""Random schemas through whole engines, a few of them. `python tests/rigs/schemas.py --schemas 10000` is the long run."""

from __future__ import annotations

import json

import pytest
import schemas
from random_schemas import fault, newer, older
from schemas import Tally, note, schemas_of

PAIR = {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}


@pytest.mark.parametrize(("model", "count"), [("hash", 40), pytest.param("nano", 16, marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_random_schemas_are_kept_in_engines_that_are_small_and_killed(model, count, capsys) -> None:
    assert schemas.main(["--schemas", str(count), "--model", model, "--seed", "11"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"ok: schemas {count}, ")
    assert out.count("\n") == 1
    said = dict(part.split(" ") for part in out[len("ok: ") :].strip().split(", "))
    assert int(said["ended"]) > count
    assert int(said["preemptions"]) > 0
    assert int(said["kills"]) > 0
    assert int(said["refused"]) < count / 3


@pytest.mark.parametrize("text", ['{"a":1,"a":1}', '{"a":"1"}', '{"a":1e999}', '{"a":NaN}', '{"a":1', ""])
def test_the_judge_of_answers_finds_faults(text: str) -> None:
    assert fault(text, PAIR)
    assert fault('{"a":1}', PAIR) is None


def test_what_differs_and_what_is_invalid_is_counted() -> None:
    tally = Tally()
    good, bad, cut = ('{"a":1}', "stop"), ("{}", "stop"), ('{"a', "length")
    note(tally, 0, PAIR, [good, cut], [good, cut])
    note(tally, 1, PAIR, [good, bad], [good, good])
    note(tally, 2, PAIR, "refused: x", "refused: x")
    assert (tally.ended, tally.cut, tally.invalid, tally.differing, tally.refused) == (3, 1, 1, 1, 1)
    assert len(tally.faults) == 2


def test_a_seed_is_one_list_of_schemas_each_of_one_draft() -> None:
    made = schemas_of(3, 200)
    assert made[:20] == schemas_of(3, 20)
    assert len({json.dumps(s) for s in made}) > 180
    assert not [s for s in made if older(s) and newer(s)]
