"""Formats that no row has are read off what a chat template writes, and turns come back whole, however they are cut."""

from __future__ import annotations

import json
import logging
import random

import pytest
import turn_samples as spec

from thalweg.errors import RequestError
from thalweg.template.chat import Chat
from thalweg.template.messages import normalise
from thalweg.template.sandbox import ChatTemplate
from thalweg.turns import format as rows
from thalweg.turns.bind import bind
from thalweg.turns.choose import choose, describe
from thalweg.turns.derive import template as deriving
from thalweg.turns.derive.template import derive
from thalweg.turns.events import Message
from thalweg.turns.format import TurnFormat
from thalweg.turns.grammar import turn_grammar
from thalweg.turns.reader import Reader
from thalweg.turns.writer import write

CHAT = """{%- for m in messages %}{% if m.role == 'user' %}[U]{{ m.content }}[E]
{% else %}[A]THOUGHT{{ m.content }}{% if m.tool_calls %}CALLS{% endif %}[E]
{% endif %}{% endfor %}{% if add_generation_prompt %}[A]{% endif %}"""
PONDER = "{% if m.reasoning_content %}<ponder>\n{{ m.reasoning_content }}\n</ponder>\n\n{% endif %}"
EACH = "{% for c in m.tool_calls %}{% set f = c.function %}INSIDE{% endfor %}"
ARGS = "{% for k, v in f.arguments.items() %}INSIDE{% endfor %}"
VALUE = "{{ v if v is string else v | tojson }}"


def each(inside: str, first: str = "", last: str = "") -> str:
    return first + EACH.replace("INSIDE", inside) + last


def args(inside: str) -> str:
    return ARGS.replace("INSIDE", inside)


ITEM = '{{ {"fn": f.name, "with": f.arguments} | tojson }}'
COMMA = "{% if not loop.last %}, {% endif %}"
SHAPES = {
    "objects": (each(f"\n<do>{ITEM}</do>"), rows.JsonCalls, ("<do>", "</do>", ("", ""))),
    "a section of objects": (
        each(f"<do>{ITEM}</do>", "<all>\n", "\n</all>"),
        rows.JsonCalls,
        ("<do>", "</do>", ("<all>", "</all>")),
    ),
    "an array": (each(ITEM + COMMA, "<all>[", "]</all>"), rows.JsonCalls, ("<all>", "</all>", ("", ""))),
    "objects without marks": (each(ITEM), rows.JsonCalls, ("", "", ("", ""))),
    "arguments as text": (
        each('<do>{{ {"fn": f.name, "with": f.arguments | tojson} | tojson }}</do>'),
        rows.JsonCalls,
        ("<do>", "</do>", ("", "")),
    ),
    "keyed": (
        each("{{ {f.name: f.arguments} | tojson }}" + COMMA, "<all>[", "]</all>"),
        rows.JsonCalls,
        ("<all>", "</all>", ("", "")),
    ),
    "a name outside": (
        each("<|fn|>{{ f.name }}<|with|>{{ f.arguments | tojson }}<|nf|>"),
        rows.JsonArgs,
        ("<|fn|>", "<|nf|>", ("", "")),
    ),
    "an id": (
        each("<|fn|>{{ f.name }}<|id|>{{ c.id }}<|with|>{{ f.arguments | tojson }}<|nf|>"),
        rows.JsonArgs,
        ("<|fn|>", "<|nf|>", ("", "")),
    ),
    "ids of names": (
        each("<|fn|>{{ c.id }}<|with|>{{ f.arguments | tojson }}<|nf|>"),
        rows.JsonArgs,
        ("<|fn|>functions.", "<|nf|>", ("", "")),
    ),
    "tags": (
        each(
            '<act name="{{ f.name }}">\n' + args('<arg key="{{ k }}">' + VALUE + "</arg>\n") + "</act>\n", "<acts>\n", "</acts>"
        ),
        rows.TaggedArgs,
        ('<act name="', "</act>", ("<acts>", "</acts>")),
    ),
    "pairs of tags": (
        each("<act>{{ f.name }}" + args("<k>{{ k }}</k><v>" + VALUE + "</v>") + "</act>"),
        rows.TaggedArgs,
        ("<act>", "</act>", ("", "")),
    ),
    "tags on lines": (
        each("<act={{ f.name }}>\n" + args("<arg={{ k }}>\n" + VALUE + "\n</arg>\n") + "</act>"),
        rows.TaggedArgs,
        ("<act=", "</act>", ("", "")),
    ),
    "tags with types": (
        each(
            "<act={{ f.name }}>"
            + args("<arg={{ k }} is={{ 'text' if v is string else 'json' }}>" + VALUE + "</arg>")
            + "</act>"
        ),
        rows.TaggedArgs,
        ("<act=", "</act>", ("", "")),
    ),
    "tags named after keys": (
        each("<use {{ f.name }}>\n" + args("<{{ k }}>" + VALUE + "</{{ k }}>\n") + "</use>"),
        rows.TaggedArgs,
        ("<use", "</use>", ("", "")),
    ),
    "python": (
        each("{{ f.name }}(" + args("{{ k }}={{ v | tojson }}" + COMMA) + ")" + COMMA, "<py>[", "]</py>"),
        rows.PythonCalls,
        ("<py>", "</py>", ("", "")),
    ),
    "bare keys": (
        each(
            "<g>do:{{ f.name + '{' }}"
            + args(
                "{{ k }}:{% if v is string %}<q>{{ v }}<q>{% else %}{{ v | tojson }}{% endif %}"
                "{% if not loop.last %},{% endif %}"
            )
            + "{{ '}' }}</g>"
        ),
        rows.GemmaArgs,
        ("<g>do:", "</g>", ("", "")),
    ),
}
"""Ways of writing calls, none of which the table has: the template's, the body it is read with, and the markers."""


def written(calls: str, thought: str = PONDER) -> str:
    return CHAT.replace("THOUGHT", thought).replace("CALLS", calls)


def writer(source: str):
    template = ChatTemplate(source)

    def render(messages, tools, prompt):
        return template.fill(normalise(messages, "openai"), tools, prompt, False, content_format=None, kwargs={})

    return render


def derived(source: str) -> TurnFormat | None:
    return derive(source, writer(source), TurnFormat())


def turns(render, source_ids: bool, deep: bool):
    """Random turns, and the template's text of each."""
    rng = random.Random(5)
    for i in (2, 5):
        said = {"role": "assistant", "content": rng.choice(["", "So be it.", "One\n\ntwo"]), "tool_calls": []}
        if i % 2:
            said["reasoning_content"] = "Hm.\n\nWell?"
        for j in range(i % 3):
            name, made = rng.choice(list(spec.SCHEMAS)), {"city": rng.choice(["Paris", "a < b", "é日", '{"q"}', "it's"])}
            if rng.random() < 0.5:
                made |= {"days": rng.randrange(9)} | ({"deep": {"a": [1, "s"]}} if deep else {})
            id = f"functions.{name}:{j}" if source_ids else f"callid{j:03d}"
            said["tool_calls"].append({"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(made)}})
        ask = {"role": "user", "content": "Well?"}
        before, whole = render([ask], spec.TOOLS, True), render([ask, said], spec.TOOLS, False)
        yield said, before, whole[len(before) :].removesuffix("[E]\n")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.sampled(2)
def test_a_format_that_no_row_has_is_derived(shape):
    calls, body, (opened, closed, section) = SHAPES[shape]
    turn = derived(written(calls))
    assert turn is not None
    assert isinstance(turn.calls.body, body)
    assert (turn.reasoning.open, turn.reasoning.close) == ("<ponder>", "</ponder>")
    found = turn.calls.open + (turn.calls.head.name_in_id[0] if turn.calls.head else "")
    assert (found, turn.calls.close, turn.calls.section) == (opened, closed, section)
    bound = bind(turn, None)
    for said, before, text in turns(writer(written(calls)), shape == "ids of names", shape != "bare keys"):
        expected = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in said["tool_calls"]]
        if turn.calls.bare and said["content"]:
            continue  # without marks, what follows content is content
        for i in range(0, len(text) + 1):
            reader, message = Reader(bound, before, spec.SCHEMAS), Message()
            for piece in (text[:i], text[i:]):
                message.add(reader.push(piece))
            message.add(reader.finish())
            assert spec.plain(message) == (said["content"], said.get("reasoning_content", ""), expected), text


@pytest.mark.parametrize("shape", [s for s in SHAPES if s != "an id"])
def test_a_derived_row_writes_and_constrains_as_others_do(shape):
    turn = derived(written(SHAPES[shape][0]))
    bound, rng = bind(turn, None), random.Random(1)
    flat = {"get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}
    assert turn_grammar(bound, flat, None, True, False, False).startswith("start:")
    for _ in range(20):
        made = spec.message(rng)
        made.content, made.reasoning = made.content and "Certainly.", made.reasoning and "Hm."
        made.content = "" if turn.calls.bare else made.content
        for call in made.calls:
            call.arguments = json.dumps({"city": rng.choice(["Paris", "é"]), "days": rng.randrange(9)})
        reader, message = Reader(bound, "", spec.SCHEMAS), Message()
        message.add([*reader.push(write(turn, made)), *reader.finish()])
        assert spec.plain(message) == spec.plain(made)


def test_reasoning_that_the_prompt_begins_is_found():
    source = written(SHAPES["objects"][0], "").replace("[A]{% endif %}", "[A]<ponder>\n{% endif %}{# </ponder> #}")
    turn = derived(source)
    assert (turn.reasoning.open, turn.reasoning.close) == ("<ponder>", "</ponder>")
    reader, message = Reader(bind(turn, None), writer(source)([{"role": "user", "content": "x"}], [], True)), Message()
    message.add([*reader.push('Hm.\n</ponder>\nYes.\n<do>{"fn": "get_weather", "with": {}}</do>'), *reader.finish()])
    assert (message.reasoning, message.content, message.calls[0].name) == ("Hm.", "Yes.", "get_weather")


@pytest.mark.parametrize(
    "source",
    [
        written("", ""),
        written("<do>{{ m.tool_calls[0].function.name }}</do>", ""),
        written(each("<do>{{ f.name }} {{ f.arguments.values() | list | length }}</do>"), ""),
        written(each("<do>{{ f.arguments | tojson }}</do>"), ""),
        written(each("<do>{{ f.name | upper }}{{ f.arguments | tojson }}</do>"), ""),
        written(each('<act name="{{ f.name }}">' + args('<arg key="{{ k }}">{{ v | string | upper }}</arg>') + "</act>"), ""),
        "{{ raise_exception('no tool_calls') }}",
        "{% for m in messages %}{{ m.content + m.tool_calls + 1 }}{% endfor %}",
        "tool_calls",
        "{{ messages }}{{ tool_calls }}",
        "{% for m in messages %}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls else '' }}{% endfor %}",
    ],
)
def test_what_cannot_be_read_back_is_not_derived(source):
    assert derived(source) is None


def test_a_template_that_takes_long_is_left_alone(monkeypatch):
    monkeypatch.setattr(deriving, "SECONDS", -1.0)
    assert derived(written(SHAPES["objects"][0]) + "{# slow #}") is None


def test_no_failure_of_a_template_fails_a_start(caplog):
    def broken(messages, tools, prompt):
        raise RequestError("never") if prompt else ValueError("never")

    with caplog.at_level(logging.WARNING):
        assert derive("tool_calls {# broken #}", broken, TurnFormat()) is None
    assert "deriving a format" in caplog.text


def test_it_is_asked_last_and_told_in_a_line():
    source = written(SHAPES["tags"][0])
    assert choose(None, None, source).calls is None
    turn = choose(None, None, source, None, writer(source))
    assert describe(turn) == (
        'tool calls: derived, <acts> <act name=" ... </act> </acts> (arguments in tags); '
        "reasoning: <ponder> ... </ponder> (by what the chat template writes)"
    )
    assert choose("hermes", "none", source, None, writer(source)).calls.name == "hermes"
    none = choose(None, None, "tool_calls", None, writer("tool_calls"))
    assert none.calls is None
    assert "none could be derived" in describe(none)


def test_a_chat_derives_it_in_its_jail():
    source = written(SHAPES["a name outside"][0])
    chat = Chat(Words(), source)
    try:
        assert choose(None, None, source, None, chat.writer()).calls.open == "<|fn|>"
    finally:
        chat.close()


class Words:
    """What a chat needs of a tokenizer to render."""

    special_texts, special_tokens = ("[E]",), {"eos_token": "[E]"}

    def encode_with_data(self, text, data, add_special_tokens=True):
        raise AssertionError("nothing is encoded")


def test_what_the_table_knows_is_kept():
    source = written(each("\n<tool_call>\n" + ITEM.replace("fn", "name").replace("with", "arguments") + "\n</tool_call>"))
    source += '{# "arguments": #}'
    turn = choose(None, None, source, None, writer(source))
    assert (turn.calls.name, turn.reasoning.open) == ("hermes", "<ponder>")
