"""A mark is a mark only where the format allows it at that point. Every row of the table, without a grammar."""

from __future__ import annotations

import json
import random

import pytest
import turn_samples as spec
import wishes
from amounts import some
from test_law import NAMES, ROWS, read, turn_of

from thalweg.turns import table
from thalweg.turns.bind import bind, terminals
from thalweg.turns.events import Call, Message
from thalweg.turns.format import GemmaArgs, TaggedArgs, TurnFormat
from thalweg.turns.grammar_scope import GrammarScope
from thalweg.turns.rows import thinking
from thalweg.turns.writer import write

KINDS = ("text", "added", "special")


def marks_of(name: str) -> list[str]:
    """Terminals of a row and its reasoning, but for what ends the reasoning."""
    turn = turn_of(name)
    ends = {turn.reasoning.close, *(turn.headers.closes if turn.headers else ()), turn.headers.open if turn.headers else ""}
    return [t for t in dict.fromkeys(terminals(turn)) if t.strip() and not t.isalnum() and t not in ends]


def no_ids(message: Message) -> tuple[str, str, list[tuple[str, str]]]:
    return message.content, message.reasoning, [(c.name, c.arguments) for c in message.calls]


@pytest.mark.parametrize("name", [n for n in NAMES if not isinstance(ROWS[n].body, TaggedArgs | GemmaArgs)])
@pytest.mark.sampled(7)
def test_marks_in_strings_are_text(name):
    turn, rng = turn_of(name), random.Random(f"strings {name}")
    bound, marks = bind(turn, None), [*marks_of(name), turn.reasoning.close]
    for _ in range(some(10, 60)):
        city = "".join(rng.choice([*marks, " ", "\n", '"', "x"]) for _ in range(rng.randrange(1, 6)))
        id = "call00000" if ROWS[name].head is None or not ROWS[name].head.name_in_id[1] else ""
        text = write(turn, Message("", "", [Call("get_weather", json.dumps({"city": city}), id)]))
        message = read(bound, text, spec.SCHEMAS, GrammarScope.NOTHING, rng, "<think></think>")
        assert spec.plain(message) == ("", "", [("get_weather", {"city": city})]), text


@pytest.mark.parametrize("name", [n for n in NAMES if isinstance(ROWS[n].body, TaggedArgs) and not ROWS[n].body.nested])
@pytest.mark.sampled(2)
def test_what_ends_a_value_is_text_of_it_where_no_value_may_end(name):
    turn, rng = turn_of(name), random.Random(f"values {name}")
    bound, row = bind(turn, None), ROWS[name]
    marks = [row.body.value_close, row.close, row.section[1], "</think>"]
    follows = (row.body.key_open, row.close, *(t for t in marks_of(name) if t not in (row.body.value_close,)))
    tried = 0
    for _ in range(some(20, 100)):
        inner = "".join(rng.choice([m for m in marks if m]) + rng.choice(["' x", " and", ".", "\n a"]) for _ in range(2))
        city = f"grep '{inner}."
        after_close = city.split(row.body.value_close)[1:]
        if any(part.lstrip().startswith(f) for part in after_close for f in follows if f):
            continue
        text = write(turn, Message("", "", [Call("get_weather", json.dumps({"city": city, "days": 3}))]))
        message = read(bound, text, spec.SCHEMAS, GrammarScope.NOTHING, rng, "<think></think>")
        assert spec.plain(message) == ("", "", [("get_weather", {"city": city, "days": 3})]), text
        tried += 1
    assert tried


@pytest.mark.parametrize("name", [n for n in NAMES if isinstance(ROWS[n].body, TaggedArgs) and not ROWS[n].body.nested])
def test_what_ends_a_value_is_text_in_its_strings_of_json(name):
    turn, rng = turn_of(name), random.Random(f"json {name}")
    row = ROWS[name]
    deep = {"a": [f"x{row.body.value_close}", f"{row.body.value_close}{row.close}y"]}
    text = write(turn, Message("", "", [Call("get_weather", json.dumps({"city": "a", "deep": deep}))]))
    message = read(bind(turn, None), text, spec.SCHEMAS, GrammarScope.NOTHING, rng, "<think></think>")
    assert spec.plain(message) == ("", "", [("get_weather", {"city": "a", "deep": deep})]), text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(12)
def test_marks_mentioned_in_reasoning_do_not_cut_it(name):
    rng = random.Random(f"thoughts {name}")
    for i in range(some(9, 60)):
        turn = turn_of(name)
        tokens = wishes.tokens_of(turn, KINDS[i % 3])
        thought = " ".join(f"The tag {m} is used" for m in rng.sample(marks_of(name), min(3, len(marks_of(name))))) + "."
        marked = tokens.bound.turn
        said = thought if i % 3 == 0 else _as_tokens(tokens, thought)
        header = marked.headers
        if header is not None:
            channel = header.inside[0] if header.inside else ""
            text = f"{channel}{header.reasoning}{header.end}{said}{header.closes[0]}{header.open}{header.role}"
            text += f"{header.content}{header.end}Yes."
        else:
            text = f"{marked.reasoning.open}{said}{marked.reasoning.close}Yes."
        if turn.reasoning.assumed:
            text = text.removeprefix(marked.reasoning.open)
        message = read(tokens.bound, text, spec.SCHEMAS, GrammarScope.NOTHING, rng)
        assert no_ids(message) == ("Yes.", thought, []), text


def _as_tokens(tokens: wishes.Tokens, text: str) -> str:
    """Text whose control words are tokens."""
    for pair, word in tokens.bound.named.items():
        text = text.replace(word, pair)
    return text


@pytest.mark.parametrize("name", NAMES)
def test_what_begins_reasoning_is_text_once_content_has_begun(name):
    turn, rng = turn_of(name), random.Random(f"content {name}")
    if turn.headers is not None or turn.reasoning.assumed:
        return
    bound = bind(turn, None)
    said = f"Wrap it in {turn.reasoning.open} tags {turn.reasoning.close} so."
    for before, thought in (("", ""), (f"{turn.reasoning.open}Hm.{turn.reasoning.close}", "Hm.")):
        assert no_ids(read(bound, before + said, spec.SCHEMAS, GrammarScope.NOTHING, rng)) == (said, thought, [])


@pytest.mark.parametrize("name", sorted(thinking.WRAPS))
def test_what_stands_around_content_is_text_within_it(name):
    reasoning, wraps, _ = table.reasoning_named(name)
    bound, rng = bind(TurnFormat(reasoning, None, wraps), None), random.Random(name)
    opened, closed = wraps[0], next(w for w in wraps if any(word in w.lower() for word in ("/", "end", "close")))
    thought = f"{'' if reasoning.assumed else reasoning.open}Hm.{reasoning.close}"
    for said in ("Yes.", f"The tag {opened} is used.", f"Then {closed} ends it."):
        text = f"{thought}{opened}{said}{closed}"
        assert no_ids(read(bound, text, {}, GrammarScope.NOTHING, rng)) == (said, "Hm.", []), text


@pytest.mark.parametrize("prompt", ["<|start|>user<|message|>Hi<|end|><|start|>assistant", "a prompt without headers"])
def test_headers_that_are_tokens_are_read_after_a_prompt_of_text(prompt):
    """gpt-oss: a prompt has the letters of what are tokens in the answer."""
    tokens, rng = wishes.tokens_of(turn_of("openai"), "special"), random.Random(1)
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "a"}'
    )
    message = read(tokens.bound, _as_tokens(tokens, text), spec.SCHEMAS, GrammarScope.NOTHING, rng, prompt)
    assert no_ids(message) == ("", "Hm.", [("get_weather", '{"city": "a"}')])
    assert no_ids(read(tokens.bound, "Plain text.", spec.SCHEMAS, GrammarScope.NOTHING, rng, prompt)) == ("Plain text.", "", [])
