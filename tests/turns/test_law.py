"""One law for every format: what a grammar holds of a turn is valid, and is read as the grammar derives it.

Every row of the table, a model that wants the format's marks everywhere, random schemas. jsonschema is the judge.
"""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
import wishes
from amounts import some

from thalweg.errors import RequestError
from thalweg.grammar.convert import source_of
from thalweg.grammar.source import GrammarRequest
from thalweg.text.marks import mark
from thalweg.turns import table
from thalweg.turns.bind import BoundTurnFormat
from thalweg.turns.events import Message
from thalweg.turns.format import TurnFormat
from thalweg.turns.grammar import (
    beginning_of_calls,
    begun_grammar,
    end_of_reasoning,
    form_grammar,
    free_grammar,
    turn_grammar,
)
from thalweg.turns.grammar_scope import GrammarScope
from thalweg.turns.reader import Reader

ROWS = {row.name: row for row in (*table.CALLS.values(), *table.SPECIFIC)}
NAMES = sorted(ROWS)
KINDS = ("text", "added", "special")
WHOLE = GrammarScope.CALLS | GrammarScope.THOUGHT


def turn_of(name: str, reasoning: str = "qwen3") -> TurnFormat:
    """A row with the reasoning of the model it is of, or else this one."""
    row = ROWS[name]
    if row.header is not None:
        return TurnFormat(table.REASONING["openai_gptoss"], row, header=row.header)
    own = name if name in table.REASONING and not table.REASONING[name].kept else reasoning
    found, wraps, _ = table.reasoning_named(own)
    return TurnFormat(found, row, wraps)


def read(bound: BoundTurnFormat, text: str, tools: Any, held: GrammarScope, rng: random.Random, prompt: str = "") -> Message:
    """Cut at random, and a character at a time: the same."""
    out = []
    at = sorted(rng.sample(range(len(text) + 1), min(len(text), 4)))
    for pieces in ([text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)], list(text)):
        reader, message = Reader(bound, prompt, tools, held), Message()
        for piece in pieces:
            message.add(reader.push(piece))
        message.add(reader.finish())
        out.append(message)
    first, second = ((m.content, m.reasoning, [(c.name, c.arguments) for c in m.calls]) for m in out)
    assert first == second, text
    return out[0]


def judge(message: Message, tools: Any, text: str) -> None:
    for call in message.calls:
        assert call.name in tools, text
        try:
            jsonschema.validate(json.loads(call.arguments), tools[call.name])
        except (ValueError, jsonschema.ValidationError) as e:
            pytest.fail(f"{e}\n{call.arguments}\n{text!r}\n{tools[call.name]}")


def some_tools(rng: random.Random) -> dict[str, Any]:
    return {n: wishes.parameters(rng) for n in ("go", "come_back")}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(1, 16)
def test_a_call_that_must_be_made_fits_its_schema(name):
    rng, served, refused = random.Random(f"law {name}"), 0, 0
    for i in range(some(4, 16)):
        turn = turn_of(name, rng.choice(["qwen3", "deepseek_v3", "kimi_k2", "mistral"]))
        tokens, tools = wishes.tokens_of(turn, KINDS[i % 3]), some_tools(rng)
        end, thinking = end_of_reasoning(tokens.bound), turn.headers is None and rng.random() < 0.4
        thought = thinking and end is not None and rng.random() < 0.5
        try:
            source = turn_grammar(tokens.bound, tools, None, rng.random() < 0.8, thinking, thought)
        except RequestError:
            refused += 1
            continue
        prompt = f"user: {turn.reasoning.open}" if thinking else ""
        for _ in range(some(2, 4)):
            text = wishes.wish(tokens, source, rng)
            if text is None:
                continue
            text = f"a {wishes.mentions(tokens, rng)}{mark(end)}{text}" if thought else text
            message = read(tokens.bound, text, tools, WHOLE, rng, prompt)
            assert message.calls, text
            assert not message.content, (message.content, text)
            judge(message, tools, text)
            served += 1
    assert served > refused


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(3, 16)
def test_a_call_that_may_be_made_fits_its_schema(name):
    """Strict tools beside free text: from the token that begins a call, or in a grammar of the whole turn."""
    rng, called = random.Random(f"strict {name}"), 0
    for i in range(some(6, 16)):
        turn = turn_of(name, rng.choice(["qwen3", "deepseek_v3"]))
        tokens, tools = wishes.tokens_of(turn, KINDS[i % 3]), some_tools(rng)
        begun = beginning_of_calls(tokens.bound) if rng.random() < 0.5 else None
        try:
            make = begun_grammar if begun is not None else free_grammar
            source = make(tokens.bound, tools)
        except RequestError:
            continue
        for calls in [True, False] * some(1, 2):
            text = wishes.wish(tokens, source, rng, calls=calls)
            if text is None:
                continue
            text = f"So.{mark(begun)}{text}" if begun is not None else text
            message = read(tokens.bound, text, tools, GrammarScope.CALLS if begun is not None else WHOLE, rng)
            assert message.calls or begun is None, text
            judge(message, tools, text)
            called += bool(message.calls)
    assert called


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(2, 16)
def test_beside_a_form_there_are_calls_or_content_of_that_form(name):
    rng, seen = random.Random(f"form {name}"), set()
    for i in range(some(5, 16)):
        turn = turn_of(name, rng.choice(["qwen3", "deepseek_v3"]))
        tokens, tools, form = wishes.tokens_of(turn, KINDS[i % 3]), some_tools(rng), wishes.members(rng)
        form = {**form, "$defs": {"Shared": {"type": "string"}}}
        if turn.calls.bare:  # an object that names a tool would be a call of it
            form = {**form, "properties": {f"_{k}": v for k, v in form["properties"].items()}, "additionalProperties": False}
            form["required"] = [f"_{k}" for k in form["required"]]
        inner = source_of(GrammarRequest(kind="json", text=json.dumps(form))).text
        try:
            source = form_grammar(tokens.bound, tools)
        except RequestError:
            continue
        for calls in [True, False] * some(1, 2):
            text = wishes.wish(tokens, source, rng, inner=inner, calls=calls)
            if text is None:
                continue
            message = read(tokens.bound, text, tools, WHOLE | GrammarScope.CONTENT, rng)
            assert bool(message.calls) != bool(message.content), text
            judge(message, tools, text)
            if message.content:
                jsonschema.validate(json.loads(message.content), form)
            seen.add(bool(message.calls))
    assert seen == {True, False}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(12)
def test_content_of_a_form_is_read_whole(name):
    """Whatever it looks like: marks, tokens of them, and white space at its ends."""
    rng = random.Random(f"content {name}")
    for i in range(some(12, 60)):
        tokens = wishes.tokens_of(turn_of(name), KINDS[i % 3])
        if turn_of(name).reasoning.assumed:
            continue
        text = wishes.mentions(tokens, rng, rng.randrange(12))
        message = read(tokens.bound, text, some_tools(rng), GrammarScope.CONTENT, rng)
        assert (message.content, message.reasoning, message.calls) == (tokens.bound.token_text(text), "", []), text
