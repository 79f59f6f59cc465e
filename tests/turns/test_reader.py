"""The reader: what a row's writer writes comes back, however the text is cut; and nothing makes it fail."""

from __future__ import annotations

import json
import random

import pytest
import turn_samples as spec
from amounts import some

from thalweg.text.marks import mark
from thalweg.turns import table
from thalweg.turns.bind import BoundTurnFormat, bind, terminals
from thalweg.turns.events import Call, Message
from thalweg.turns.format import GemmaArgs, JsonArgs, PythonCalls, TaggedArgs, TurnFormat
from thalweg.turns.reader import Reader, read
from thalweg.turns.writer import write

ROWS = sorted({row.name: row for row in (*table.CALLS.values(), *table.SPECIFIC)}.items())
NAMES = [name for name, _ in ROWS]
HERMES = bind(TurnFormat(table.REASONING["qwen3"], table.CALLS["hermes"]), None)


def turn_of(name: str) -> TurnFormat:
    row = dict(ROWS)[name]
    if row.header is not None:
        return TurnFormat(table.REASONING["openai_gptoss"], row)
    own = name in table.REASONING and not table.REASONING[name].kept
    reasoning, wraps, _ = table.reasoning_named(name if own else "qwen3")
    return TurnFormat(reasoning, row, wraps)


def in_pieces(bound: BoundTurnFormat, pieces: list[str], prompt: str = "") -> Message:
    reader, message = Reader(bound, prompt, spec.SCHEMAS), Message()
    for piece in pieces:
        message.add(reader.push(piece))
    message.add(reader.finish())
    return message


def cuts(text: str, rng: random.Random) -> list[str]:
    at = sorted(rng.sample(range(1, len(text)), min(len(text) - 1, rng.randrange(1, 12)))) if len(text) > 1 else []
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]


def speakable(turn: TurnFormat, message: Message) -> bool:
    """Can the format say it? Some have no way to escape their own terminals."""
    parts = [p for t in terminals(turn) for p in (t.strip(), t.split(">")[0].strip()) if len(p) > 1]
    raw = turn.calls is not None and isinstance(turn.calls.body, TaggedArgs | GemmaArgs)
    texts = [message.content, message.reasoning]
    values = [str(v) for c in message.calls for v in json.loads(c.arguments).values()]
    texts += values if raw else []
    if raw and any(v != v.strip("\n\r\t ") for v in values):
        return False
    return not any(p in t for p in parts for t in texts)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(2)
def test_what_is_written_is_read(name):
    rng, turn, said = random.Random(name), turn_of(name), 0
    bound = bind(turn, None)
    for _ in range(some(60, 300)):
        message = spec.message(rng)
        if turn.calls.bare or name == "xlam":
            message.content = "" if message.calls else message.content
        if turn.reasoning.assumed and not message.reasoning:
            continue
        if not speakable(turn, message):
            continue
        text = write(turn, message)
        assert spec.plain(read(bound, text, "", spec.SCHEMAS)) == spec.plain(message), text
        said += 1
    assert said > some(4, 20)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(2)
def test_streamed_equals_whole_for_every_split(name):
    rng, turn = random.Random(name), turn_of(name)
    bound = bind(turn, None)
    message = Message(
        "Well.",
        "Hm <so>.",
        [Call("get_weather", '{"city": "a\\n\\"b\\" {<", "days": 3, "deep": {"a": [1, "x"]}}'), Call("other_tool", "{}")],
    )
    text = write(turn, message)
    whole = _no_ids(read(bound, text, "", spec.SCHEMAS))
    for i in rng.sample(range(len(text)), some(20, len(text))):
        assert _no_ids(in_pieces(bound, [text[:i], text[i:]])) == whole, (text[:i], text[i:])
    assert _no_ids(in_pieces(bound, list(text))) == whole
    for _ in range(some(5, 20)):
        assert _no_ids(in_pieces(bound, cuts(text, rng))) == whole


def _no_ids(message: Message) -> tuple[str, str, list[tuple[str, str]]]:
    return message.content, message.reasoning, [(c.name, c.arguments) for c in message.calls]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(12)
def test_nothing_makes_it_fail(name):
    """Terminals in any order, cut anywhere, with anything between: read in pieces as at once."""
    rng, turn = random.Random(name), turn_of(name)
    bound = bind(turn, None)
    parts = [t for t in terminals(turn) if t] + [
        '{"name": "f", "arguments": {"a": 1}}',
        "f(a=1)",
        "[",
        "]",
        "{",
        "}",
        "x",
        "\n",
        '"',
    ]
    for _ in range(some(50, 200)):
        text = "".join(rng.choice(parts)[: rng.randrange(1, 40)] for _ in range(rng.randrange(12)))
        assert _no_ids(in_pieces(bound, cuts(text, rng))) == _no_ids(read(bound, text, "", spec.SCHEMAS)), text


@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_lost_where_there_is_no_call(name):
    turn = turn_of(name)
    bound = bind(TurnFormat(None, turn.calls), None)
    calls = turn.calls
    assert read(bound, "Just text, 1 < 2.\n").content == "Just text, 1 < 2.\n"
    opened = calls.section[0] or calls.open
    if opened and calls.header is None:
        assert read(bound, f"So {opened} is what it begins with").content == f"So {opened} is what it begins with"


def test_a_long_text_takes_steps_in_proportion():
    """Counted, for texts that make a careless reader look again and again."""
    for unit in (
        "a",
        "<",
        "<tool_call>",
        '<tool_call>{"name": "x',
        "\n",
        "<tool_call>{",
        '<tool_call>{"name": "f", "arguments": {"a": "',
    ):
        taken = []
        for size in (5_000, 20_000):
            reader = Reader(HERMES, "", spec.SCHEMAS)
            reader.push(unit * (size // len(unit)))
            reader.finish()
            taken.append(reader.steps)
        assert taken[1] <= 4 * taken[0] + 200, unit
        assert taken[1] <= 4 * 20_000, unit


def test_long_arguments_come_out_whole():
    args = json.dumps({"city": "x < y, and so on for some words\n" * 5_000})
    text = f'<tool_call>\n{{"name": "get_weather", "arguments": {args}}}\n</tool_call>'
    message = read(HERMES, text)
    assert message.calls[0].arguments == args


def test_json_arguments_are_verbatim():
    args = '{ "b":1e5,\t"a" : "\\u00e9\\/", "a": 2 }'
    assert read(HERMES, f'<tool_call>{{"arguments": {args}, "name": "f"}}</tool_call>').calls[0].arguments == args


def test_arguments_given_as_text_are_the_json_in_it():
    text = r'<tool_call>{"name": "f", "arguments": "{\"a\": \"\\u00e9 😀\"}"}</tool_call>'
    assert json.loads(read(HERMES, text).calls[0].arguments) == {"a": "é 😀"}
    text = r'<tool_call>{"name": "f", "arguments": "\ud83d\ude00 \ud83d"}</tool_call>'
    assert read(HERMES, text).calls[0].arguments == "😀 \ufffd"


def test_a_call_that_was_cut_off_is_told_as_far_as_it_went():
    message = read(HERMES, '<tool_call>{"name": "f", "arguments": {"a": "b')
    assert [(c.name, c.arguments) for c in message.calls] == [("f", '{"a": "b')]
    bound = bind(TurnFormat(None, table.CALLS["qwen3_coder"]), None)
    cut = read(bound, "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar", "", spec.SCHEMAS, cut=True)
    assert cut.calls[0].arguments == '{"city": "Par'


def test_reasoning_that_the_prompt_opened():
    text = "hm\n</think>\n\nYes"
    assert _no_ids(read(HERMES, text, "...<think>\n")) == ("Yes", "hm", [])
    assert _no_ids(read(HERMES, "<think>\n" + text, "...assistant\n")) == ("Yes", "hm", [])
    assert _no_ids(read(HERMES, "\n\nYes", "<think>\n\n</think>")) == ("Yes", "", [])


def test_reasoning_that_is_over_before_it_begins():
    assert _no_ids(read(HERMES, "</think>\n\nYes", "...assistant\n")) == ("Yes", "", [])
    assert _no_ids(read(HERMES, "Yes </think> no", "...assistant\n")) == ("Yes </think> no", "", [])


def test_a_call_ends_reasoning_where_the_format_says_so():
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert _no_ids(read(HERMES, f"<think>so {call}")) == ("", "so", [("f", "{}")])
    strict = bind(TurnFormat(table.REASONING["glm45"], table.CALLS["hermes"]), None)
    assert _no_ids(read(strict, f"<think>so {call}</think>x")) == ("x", f"so {call}", [])


def test_reasoning_between_calls_is_reasoning():
    text = '<think>a</think><tool_call>{"name": "f", "arguments": {}}</tool_call><think>b</think>'
    assert _no_ids(read(HERMES, text)) == ("", "a\nb", [("f", "{}")])


def test_reasoning_that_is_kept_in_content():
    bound = bind(TurnFormat(table.REASONING["minimax_m2_append_think"]), None)
    assert _no_ids(read(bound, "a</think>b")) == ("<think>a</think>b", "", [])


def test_bare_json_is_a_call_only_of_a_known_tool():
    bound = bind(TurnFormat(None, table.CALLS["llama3_json"]), None)
    call = '{"name": "get_weather", "parameters": {"city": "x"}}'
    assert _no_ids(read(bound, call, "", spec.SCHEMAS)) == ("", "", [("get_weather", '{"city": "x"}')])
    assert len(read(bound, call + "; " + call, "", spec.SCHEMAS).calls) == 2
    for text in ('{"name": "Bob", "parameters": {}}', '{"name": "get_weather", "age": 3}', '{"a": 1}', "{}", "{", "[1, 2]"):
        assert _no_ids(read(bound, text, "", spec.SCHEMAS)) == (text, "", []), text


@pytest.mark.parametrize("text", ["x)", "3)", "[1]]", "{}}"])
def test_a_value_with_a_bracket_too_many_stays_its_text(text):
    bound = bind(TurnFormat(None, table.CALLS["qwen3_coder"]), None)
    turn = f"<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    schemas = {"f": {"properties": {"a": {}}}}
    assert json.loads(read(bound, turn, "", schemas).calls[0].arguments) == {"a": text}


def test_python_literals_become_json():
    bound = bind(TurnFormat(None, table.CALLS["pythonic"]), None)
    text = "[a.b(x='it\\'s \\x41\\u00e9\\n\"q\"', y=-1.5e3, z=[True, None, (1, 2)], w={'k': 'v'}), get_weather()]"
    first, second = read(bound, text).calls
    assert first.name == "a.b"
    assert json.loads(first.arguments) == {
        "x": "it's Aé\n\"q\"", "y": -1500.0, "z": [True, None, [1, 2]], "w": {"k": "v"},
    }  # fmt: skip
    assert (second.name, second.arguments) == ("get_weather", "{}")


class Vocabulary:
    added_tokens = {7: "<tool_call>", 8: "</tool_call>", 9: "<think>", 10: "<|other|>", 11: "\n\n"}
    special_ids = frozenset({7, 8, 10})


def test_a_terminal_that_is_a_token_counts_only_as_that():
    bound = bind(HERMES.turn, Vocabulary())
    assert bound.marked == (7, 8, 9)
    call = '{"name": "f", "arguments": {"a": "</tool_call>"}}'
    spelled = f"<tool_call>{call}</tool_call>"
    assert read(bound, spelled).content == spelled
    got = read(bound, mark(7) + call + mark(8))
    assert _no_ids(got) == ("", "", [("f", '{"a": "</tool_call>"}')])
    # A token that means nothing here is text, and so is one within a JSON string.
    assert read(bound, f"a{mark(8)}b").content == "a</tool_call>b"
    got = read(bound, mark(7) + '{"name": "f", "arguments": {"a": "b' + mark(8) + mark(9) + 'c"}}' + mark(8))
    assert _no_ids(got) == ("", "", [("f", '{"a": "b</tool_call><think>c"}')])


def test_every_kind_of_body_is_among_the_rows():
    kinds = {type(row.body) for _, row in ROWS}
    assert {JsonArgs, TaggedArgs, GemmaArgs, PythonCalls} < kinds
