"""The tasks of thalweg-nano: no content is in two splits, every task has plenty of it, the judge tells right from wrong."""

from __future__ import annotations

import json
from itertools import islice
from random import Random

import pytest

from thalweg.errors import ConfigError
from thalweg.nano import SPLITS, TASKS, generate, judge, split_of
from thalweg.nano.example import call_text
from thalweg.nano.numbers import digits
from thalweg.nano.score import average, check_tasks, held_out, scores, table

MANY = 400
QUICK = [pytest.param(t, marks=pytest.mark.slow) if t == "needle" else t for t in TASKS]
"""Long texts take long to make."""


def examples(task, split, n=MANY, seed=1):
    return list(islice(generate(task, split, seed), n))


@pytest.mark.parametrize("n", [80, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", QUICK)
@pytest.mark.sampled(4)
def test_no_content_and_no_conversation_is_in_two_splits(task, n):
    seen = {split: examples(task, split, n) for split in SPLITS}
    for a in SPLITS:
        assert {split_of(task, e.key) for e in seen[a]} == {a}
        for b in set(SPLITS) - {a}:
            assert not {e.key for e in seen[a]} & {e.key for e in seen[b]}
            assert not {_asked(e) for e in seen[a]} & {_asked(e) for e in seen[b]}


def _asked(example) -> str:
    return json.dumps([example.messages, example.tools])


@pytest.mark.parametrize("task", QUICK)
@pytest.mark.sampled(4)
def test_one_seed_gives_the_same_examples_and_another_gives_others(task):
    assert examples(task, "test", 20) == examples(task, "test", 20)
    assert examples(task, "test", 20) != examples(task, "test", 20, seed=2)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.sampled(4)
def test_a_hundred_different_contents_are_held_out_and_answers_differ(task):
    held = held_out(task, 100, seed=0)
    assert len({e.key for e in held}) == 100
    answers = [e.answer for e in held]
    commonest = max(answers.count(a) for a in set(answers))
    assert commonest <= (70 if task == "sentiment" else 60), "always saying the same must not do well"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.sampled(4)
def test_only_the_right_answer_counts(task):
    for e in examples(task, "validation", 50):
        assert e.messages[-1]["role"] in ("user", "tool")
        assert judge(e, e.answer)
        assert judge(e, f" {e.answer}\n")
        assert not judge(e, "")
        assert not judge(e, e.answer[:-1])
        assert not judge(e, e.answer + " " + e.answer)
        assert not judge(e, e.answer + "x")


def test_json_is_judged_by_value_and_type():
    (e,) = examples("extract_json", "validation", 1)
    value = json.loads(e.answer)
    assert judge(e, json.dumps(dict(reversed(value.items())), indent=2))
    key = next(iter(value))
    for wrong in ({**value, key: [value[key]]}, {**value, "more": 1}, {k: v for k, v in value.items() if k != key}):
        assert not judge(e, json.dumps(wrong))
    number = next(e for e in examples("extract_json", "validation") if isinstance(json.loads(e.answer).get("age"), int))
    value = json.loads(number.answer)
    assert not judge(number, json.dumps({**value, "age": str(value["age"])}))
    assert not judge(number, json.dumps({**value, "age": float(value["age"])}))


def test_a_tool_call_is_judged_by_name_and_arguments():
    e = next(e for e in examples("tool_call", "validation") if e.check == "call")
    call = json.loads(e.answer.split("\n")[1])
    assert judge(e, call_text(call["name"], dict(reversed(call["arguments"].items()))))
    assert not judge(e, call_text(call["name"] + "x", call["arguments"]))
    assert not judge(e, call_text(call["name"], {}))
    assert not judge(e, e.answer + e.answer)
    assert not judge(e, "Here: " + e.answer)
    assert not judge(e, json.dumps(call))


def test_called_tools_are_offered_and_answers_are_where_they_are_said_to_be():
    for e in examples("tool_call", "train"):
        if e.check == "call":
            call = json.loads(e.answer.split("\n")[1])
            (function,) = (t["function"] for t in e.tools if t["function"]["name"] == call["name"])
            assert list(call["arguments"]) == function["parameters"]["required"]
            kinds = {"string": str, "integer": int, "boolean": bool}
            for name, stated in function["parameters"]["properties"].items():
                assert type(call["arguments"][name]) is kinds[stated["type"]]
    for task in ("passage", "needle", "copy"):
        for e in examples(task, "train", 50):
            assert e.answer in e.messages[0]["content"]


def test_arithmetic_is_right_and_holds_out_pairs_in_either_order():
    for e in examples("arithmetic", "train"):
        low, sign, high = e.key.split()
        assert int(e.answer) == (int(low) + int(high) if sign == "+" else int(high) - int(low))
    assert split_of("arithmetic", "3 + 17") == split_of("arithmetic", "3 + 17")


def test_the_table_counts_what_was_right():
    def answer(examples):
        return [e.answer if i % 4 else "no" for i, e in enumerate(examples)]

    found = list(scores(answer, ["copy", "count"], 8, seed=3))
    assert [s.accuracy for s in found] == [0.75, 0.75]
    assert average(found) == 0.75
    assert "| copy    |       8 |    75.0 |" in table(found)
    assert "| average |      16 |    75.0 |" in table(found)


@pytest.mark.slow
def test_unknown_tasks_and_splits_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"--tasks: unknown flying; supported: chat, copy"):
        check_tasks(["copy", "flying"])
    with pytest.raises(ValueError, match="flying"):
        next(generate("flying", "test", 0))
    with pytest.raises(ValueError, match="exam"):
        next(generate("copy", "exam", 0))
    with pytest.raises(ConfigError, match=r"--n: task .* has only about .*, not 1000000"):
        held_out("arithmetic", 1_000_000, 0)


def test_sums_of_digits_are_taught_whole_and_judged_nowhere():
    for split in ("validation", "test"):
        assert all(int(e.key.split()[2]) > 9 for e in examples("arithmetic", split))
    r = Random(5)
    assert all(int(digits(r).key.split()[2]) <= 9 for _ in range(100))
