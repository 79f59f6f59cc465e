"""A turn that was cut off at any character: its calls have the arguments that were written, and nothing that was not."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest
import turn_samples as spec
from amounts import some
from test_reader import NAMES, ROWS, speakable, turn_of

from thalweg.text.marks import is_half, mark
from thalweg.turns import table
from thalweg.turns.bind import BoundTurnFormat, bind, terminals
from thalweg.turns.events import Call, Message
from thalweg.turns.format import TaggedArgs, TurnFormat
from thalweg.turns.reader import Reader, read
from thalweg.turns.rows.tagged import MM
from thalweg.turns.writer import write

SCHEMA = {**spec.WEATHER, "properties": {**spec.WEATHER["properties"], "note": {"type": ["string", "null"]}}}
SCHEMAS = {"get_weather": SCHEMA, "other_tool": SCHEMA}
TAGGED = [name for name, row in ROWS if isinstance(row.body, TaggedArgs) and not row.body.nested]


class Tokens:
    """A vocabulary in which every tag of a format is a token."""

    def __init__(self, turn: TurnFormat) -> None:
        tags = sorted({t for text in terminals(turn) for t in re.findall(r"<[^<>]+>|\[[A-Z_]+\]", text)})
        self.added_tokens = dict(enumerate(tags, 300))
        self.special_ids = frozenset(self.added_tokens)

    def marked(self, text: str) -> str:
        for id, token in self.added_tokens.items():
            text = text.replace(token, mark(id))
        return text


def bound_of(turn: TurnFormat, as_tokens: bool, *texts: str) -> tuple[BoundTurnFormat, list[str]]:
    if not as_tokens:
        return bind(turn, None), list(texts)
    tokens = Tokens(turn)
    return bind(turn, tokens), [tokens.marked(t) for t in texts]


def told(message: Message) -> tuple[str, str, list[tuple[str, str]]]:
    return message.content, message.reasoning, [(c.name, c.arguments) for c in message.calls]


def streamed(bound: BoundTurnFormat, text: str) -> Message:
    reader, message = Reader(bound, "", SCHEMAS), Message()
    for c in text:
        message.add(reader.push(c))
    message.add(reader.finish(True))
    return message


def ends(text: str) -> list[int]:
    """Where a text may be cut: between any two characters but the halves of a mark."""
    return [n for n in range(1, len(text)) if not (is_half(text[n - 1]) and text[n - 1] < "\udc00")]


def check(bound: BoundTurnFormat, text: str, whole: Message, other: Message | None = None, until: int = 0) -> None:
    """Every cut begins the whole turn, and up to there the other one."""
    found = ends(text)
    rng, size = random.Random(len(text)), len(found)
    for n in sorted({*rng.sample(found, min(size, some(12, size))), *found[-30:]}):
        said = read(bound, text[:n], "", SCHEMAS, cut=True)
        if not said.calls:
            continue
        for all in [whole, other] if other is not None and n <= until else [whole]:
            calls, last = all.calls[: len(said.calls) - 1], all.calls[len(said.calls) - 1]
            assert told(said)[2][:-1] == [(c.name, c.arguments) for c in calls], text[:n]
            assert said.calls[-1].name == last.name
            assert last.arguments.startswith(said.calls[-1].arguments), (text[:n], said.calls[-1].arguments, last.arguments)
            assert (said.content, said.reasoning) == (all.content, all.reasoning), text[:n]
        if n % 7 == 0:
            assert told(streamed(bound, text[:n])) == told(said), text[:n]


def longer(call: Call, key: str) -> Call:
    """The same call, whose last value is the string `key` with more text in it."""
    made = json.loads(call.arguments)
    made[key] = made.pop(key, "Par") + "is too"
    return replace(call, arguments=json.dumps(made, ensure_ascii=False))


def shared(one: str, other: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("as_tokens", [False, True], ids=["letters", "tokens"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(1, 24)
def test_a_cut_call_begins_every_call_that_it_may_become(name, as_tokens):
    """Two turns that differ in how their last value goes on: up to there, what is told begins both."""
    rng, turn, said = random.Random(name), turn_of(name), 0
    for _ in range(some(40, 200)):
        message, key = spec.message(rng), rng.choice(["city", "note"])
        message = replace(message, content="", reasoning="Hm." if message.reasoning or turn.reasoning.assumed else "")
        for call in message.calls:
            made = json.loads(call.arguments)
            made[key] = rng.choice(["a", "Par é", "1", "", "x\ny", '"q', "{", "</", "nul", "]"])
            call.arguments = json.dumps({k: made[k] for k in sorted(made, key=key.__eq__)}, ensure_ascii=False)
        if not 1 <= len(message.calls) <= 2 or not speakable(turn, message):
            continue
        other = replace(message, calls=[*message.calls[:-1], longer(message.calls[-1], key)])
        bound, (one, two) = bound_of(turn, as_tokens, write(turn, message), write(turn, other))
        wholes = [read(bound, t, "", SCHEMAS) for t in (one, two)]
        assert [len(w.calls) for w in wholes] == [len(message.calls)] * 2
        if len(one) > 500:
            continue
        check(bound, one, *wholes, shared(one, two))
        said += 1
        if said >= some(1, 10):
            break
    assert said >= some(1, 5)


@pytest.mark.parametrize("name", TAGGED)
@pytest.mark.sampled(4)
def test_a_closing_mark_within_a_value_does_not_end_a_cut_call(name):
    turn = turn_of(name)
    close = turn.calls.body.value_close
    call = Call("get_weather", json.dumps({"city": f"a {close} b {close[:-1]} c"}))
    text, bound = write(turn, Message("", "Hm.", [call])), bind(turn, None)
    whole = read(bound, text, "", SCHEMAS)
    assert [json.loads(c.arguments) for c in whole.calls] == [json.loads(call.arguments)]
    check(bound, text, whole)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_the_model_ended_is_whole_without_what_comes_after_it(name):
    """Of a turn that ended by itself, only the marks after the arguments may be missing."""
    turn = turn_of(name)
    bound, call = bind(turn, None), Call("get_weather", '{"city": "Paris"}')
    text = write(turn, Message("", "Hm.", [call])).rstrip()
    close = turn.calls.section[1]
    if close:
        text = text.removesuffix(close)
    assert [json.loads(c.arguments) for c in read(bound, text, "", SCHEMAS).calls] == [{"city": "Paris"}]


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\né\n</parameter>\n</function", '{"city": "é'),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\né\n</parameter>\n<par", '{"city": "é'),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=days>\n3", '{"days": '),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n</fun", '{"days": 3'),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<par", ""),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=note>\nMore and", '{"note": "More and'),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=note>\nnul", '{"note": '),
        ("minicpm5", '<function name="get_weather"><param name="city"><![CDATA[é]]', '{"city": "é'),
        ("glm45", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>é</arg_val", '{"city": "é'),
        ("pythonic", "[get_weather(city=", '{"city": '),
        ("pythonic", "[get_weather(city='é", '{"city": "é'),
        ("pythonic", "[get_weather(city='é'), oth", '{"city": "é"}'),
        ("gemma4", '<|tool_call>call:get_weather{city:<|"|>é<|"', '{"city": "é'),
        ("minimax_m3", '{M}<tool_call>{M}<invoke name="get_weather">{M}<city>é]<]min'.replace("{M}", MM), '{"city": "é'),
    ],
)  # fmt: skip
def test_what_was_written_is_told_and_stays_open(name, text, arguments):
    bound = bind(TurnFormat(None, table.CALLS[name]), None)
    message = read(bound, text, "", SCHEMAS, cut=True)
    assert told(message) == ("", "", [("get_weather", arguments)])
    assert told(streamed(bound, text)) == told(message)


def test_the_beginning_of_a_mark_is_content_where_no_call_has_begun():
    bound = bind(TurnFormat(None, table.CALLS["qwen3_coder"]), None)
    assert read(bound, "1 <", cut=True).content == "1 <"
    assert read(bound, "See <tool_call>\n<func", cut=True).content == "See <tool_call>\n<func"
    called = "<tool_call>\n<function=get_weather>\n</function>\n</tool_call>"
    assert read(bound, called + "\n<tool_c", cut=True).content == ""
    assert read(bound, called + " So 1 <", cut=True).content == "So 1 <"
