"""The grammar of a turn, held against llguidance: it takes what the row's writer writes, and nothing without a call."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import lru_cache

import llguidance
import pytest

from thalweg.errors import RequestError
from thalweg.turns import table
from thalweg.turns.bind import bind
from thalweg.turns.events import Call, Message
from thalweg.turns.format import TurnFormat
from thalweg.turns.grammar import beginning_of_calls, begun_grammar, end_of_reasoning, turn_grammar
from thalweg.turns.writer import write

TOOLS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "soon": {"type": "boolean"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "other": {"type": "object", "properties": {}, "additionalProperties": False},
}
ROWS = {row.name: row for row in (*table.CALLS.values(), *table.SPECIFIC)}
NAMES = sorted(ROWS)
ARGUMENTS = [
    '{"city": "Par"}',
    '{"city": "x y", "days": 3}',
    '{"city": "a", "soon": true}',
    '{"city": "b", "days": 1, "soon": false}',
]


def turn_of(name: str) -> TurnFormat:
    if ROWS[name].header is not None:
        return TurnFormat(table.REASONING["openai_gptoss"], ROWS[name])
    return TurnFormat(table.REASONING["qwen3"], ROWS[name])


@lru_cache(maxsize=1)
def matcher_of(source: str) -> llguidance.LLMatcher:
    tokenizer = llguidance.LLTokenizer("byte")
    assert not llguidance.LLMatcher.validate_grammar(source, tokenizer), source
    return llguidance.LLMatcher(tokenizer, source, log_level=0)


def accepts(source: str, text: str) -> bool:
    matcher = matcher_of(source).deep_copy()
    assert not matcher.get_error(), (matcher.get_error(), source)
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(8)
def test_it_takes_what_is_written_and_nothing_without_a_call(name):
    rng, turn = random.Random(name), turn_of(name)
    source = turn_grammar(bind(turn, None), TOOLS)
    one, row = turn.headers is not None, ROWS[name]
    leads = row.head is not None and row.head.first == "id" and not row.head.name_in_id[1]
    id = "call00000" if leads or getattr(row.body, "id_first", False) else ""
    for reasoning in ("", "Hm, <so>.\nYes."):
        for arguments in ARGUMENTS:
            calls = [Call("get_weather", arguments, id)]
            if not one and rng.random() < 0.5:
                calls.append(Call("other", "{}", id))
            text = write(turn, Message("", reasoning, calls))
            assert accepts(source, text), (text, source)
            assert not accepts(source, text.replace("get_weather", "get_whether"))
    assert not accepts(source, "just text")
    assert not accepts(source, "")


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "kimi_k2", "jamba", "pythonic", "gemma4"])
def test_a_named_call_is_that_one_and_only_one(name):
    turn = turn_of(name)
    source = turn_grammar(bind(turn, None), TOOLS, "other")
    assert accepts(source, write(turn, Message("", "", [Call("other", "{}")])))
    assert not accepts(source, write(turn, Message("", "", [Call("get_weather", ARGUMENTS[0])])))
    assert not accepts(source, write(turn, Message("", "", [Call("other", "{}"), Call("other", "{}")])))


def test_reasoning_that_the_prompt_opened_comes_first():
    turn = turn_of("hermes")
    source = turn_grammar(bind(turn, None), TOOLS, thinking=True)
    message = Message("", "so", [Call("other", "{}")])
    assert accepts(source, write(turn, message, thinking=True))
    assert not accepts(source, write(turn, Message("", "", [Call("other", "{}")])))


def test_tokens_are_written_by_their_ids():
    class Vocabulary:
        added_tokens = {300: "<tool_call>", 301: "</tool_call>", 302: "</think>"}
        special_ids = frozenset({300, 301, 302})

    source = turn_grammar(bind(turn_of("hermes"), Vocabulary()), TOOLS)
    assert "<[300]>" in source
    assert "<[301]>" in source
    assert "<[302]>" in source
    assert "<tool_call>" not in source


def test_after_reasoning_that_a_token_ends_the_turn_is_the_calls_alone():
    class Vocabulary:
        added_tokens = {300: "<tool_call>", 302: "</think>"}
        special_ids = frozenset({300, 302})

    bound = bind(turn_of("hermes"), Vocabulary())
    assert end_of_reasoning(bound) == 302
    after = turn_grammar(bound, TOOLS, thinking=True, thought=True)
    assert "<[302]>" not in after
    assert "<[300]>" in after
    assert end_of_reasoning(bind(turn_of("hermes"), None)) is None


def test_formats_that_cannot_be_constrained_are_refused():
    odd = {"type": "object", "properties": {"x": {"not": {"type": "string"}}}}
    with pytest.raises(RequestError, match="parameters of 'odd': not is not supported in this model's call format gemma4") as e:
        turn_grammar(bind(turn_of("gemma4"), None), {"odd": odd})
    assert e.value.param == "tool_choice"
    names = {"odd": ("tools[0].function.parameters",) * 2}
    with pytest.raises(
        RequestError, match=r"^tools\[0\]\.function\.parameters: not is not supported in this model's call format gemma4"
    ) as e:
        turn_grammar(bind(turn_of("gemma4"), None), {"odd": odd}, names=names)
    assert e.value.param == "tools[0].function.parameters"
    with pytest.raises(RequestError, match="tool calls is unknown"):
        turn_grammar(bind(TurnFormat(), None), TOOLS)


TREE = {
    "type": "object",
    "properties": {
        "who": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "kind": {"enum": ["a", "b"]}},
            "required": ["kind"],
        },
        "days": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        "legs": {"type": "array", "items": {"type": "object", "properties": {"to": {"type": "string"}}}, "minItems": 1},
        "free": {"type": ["string", "null"]},
    },
    "required": ["who"],
}


@pytest.mark.parametrize(
    ("arguments", "good"),
    [
        ({"who": {"name": "x <y>", "kind": "b"}}, True),
        ({"who": {"kind": "a"}, "days": [1, 2], "legs": [{"to": "Rome"}, {}]}, True),
        ({"who": {"kind": "a"}, "days": []}, True),
        ({"who": {"kind": "c"}}, False),
        ({"who": {"kind": "a"}, "days": [1, 2, 3]}, False),
        ({"who": {"kind": "a"}, "days": ["x"]}, False),
        ({"who": {"kind": "a"}, "legs": []}, False),
        ({"days": [1]}, False),
    ],
)
def test_arguments_in_nested_tags_fit_their_schema(arguments, good):
    turn = turn_of("minimax_m3")
    source = turn_grammar(bind(turn, None), {"go": TREE})
    text = write(turn, Message("", "", [Call("go", json.dumps(arguments))]))
    assert accepts(source, text) == good, (text, source)


MARK = 7
"""Id, and byte, of the token that begins calls."""


class OneToken:
    """A vocabulary in which what begins calls of a row is a token."""

    special_ids = frozenset({MARK})

    def __init__(self, opened: str) -> None:
        self.added_tokens = {MARK: opened}


@pytest.mark.parametrize("name", sorted(n for n in NAMES if not ROWS[n].bare and ROWS[n].header is None))
@pytest.mark.sampled(8)
def test_a_call_that_has_begun_is_one_of_the_tools_and_fits_its_schema(name):
    row = ROWS[name]
    opened = row.section[0] or row.open
    turn, rng = TurnFormat(table.REASONING["mimo"], row), random.Random(name)
    bound = bind(turn, OneToken(opened))
    if beginning_of_calls(bound) is None:
        assert not opened
        return
    assert beginning_of_calls(bound) == MARK
    source = begun_grammar(bound, TOOLS)
    leads = row.head is not None and row.head.first == "id" and not row.head.name_in_id[1]
    id = "call00000" if leads or getattr(row.body, "id_first", False) else ""
    for arguments in ARGUMENTS:
        calls = [Call("get_weather", arguments, id)]
        if rng.random() < 0.5:
            calls.append(Call("other", "{}", id))
        text = write(turn, Message("", "", calls)).lstrip()
        before, _, after = text.partition(opened)
        assert not before
        taken = after.replace(opened, chr(MARK))
        assert accepts(source, taken), (taken, source)
        assert not accepts(source, taken.replace("get_weather", "get_whether"))
        assert not accepts(source, taken + "more text")
    assert not accepts(source, "")


def test_what_begins_calls_is_a_token_and_ends_reasoning():
    hermes = ROWS["hermes"]
    token = OneToken(hermes.open)
    assert beginning_of_calls(bind(TurnFormat(None, hermes), token)) == MARK
    assert beginning_of_calls(bind(TurnFormat(table.REASONING["qwen3"], hermes), None)) is None
    within = replace(table.REASONING["qwen3"], implicit_ends=False)
    assert beginning_of_calls(bind(TurnFormat(within, hermes), token)) is None
    assert beginning_of_calls(bind(TurnFormat(None, ROWS["llama3_json"]), OneToken("<|python_tag|>"))) is None
    assert beginning_of_calls(bind(TurnFormat(), token)) is None
