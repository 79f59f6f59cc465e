"""Schemas that are part of a grammar: what is wrong with one is said by its field, with a pointer into it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import grammar_rig as rig
import pytest

from thalweg.engine.client.grammars import StructuredOutputs
from thalweg.errors import RequestError
from thalweg.params import GrammarPart, StructuredOutputsParams
from thalweg.turns import table
from thalweg.turns.bind import bind
from thalweg.turns.format import TurnFormat
from thalweg.turns.grammar import free_grammar, turn_grammar

ROWS = {row.name: row for row in table.CALLS.values() if row.header is None}
GOOD = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
FIELD = "tools[1].function.parameters"


@pytest.fixture(scope="module")
def outputs() -> Iterator[StructuredOutputs]:
    made = StructuredOutputs(lambda: rig.VOCABULARY)
    yield made
    made.close()


def asked(name: str, schema: dict[str, Any], free: bool = False) -> StructuredOutputsParams:
    """Calls of two tools, of which the second has this schema."""
    tools = {"good": GOOD, "odd": schema}
    fields = {n: (f"tools[{i}].function.parameters",) * 2 for i, n in enumerate(tools)}
    make = free_grammar if free else turn_grammar
    source = make(bind(TurnFormat(None, ROWS[name]), None), tools, names=fields)
    parts = [GrammarPart(*fields[n], s) for n, s in tools.items()]
    return StructuredOutputsParams(grammar=source, asked_as="tool_choice", parts=parts)


def within(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": (within({"type": "integer", "minimum": 5, "maximum": 4}), "#: Unsatisfiable schema: required property 'a'"),
    "no reference": (within({"$ref": "#/$defs/none"}), "#"),
    "too many sets": (
        within({"type": "object", "patternProperties": {"^[a-z]$": {}}, "additionalProperties": False, "minProperties": 9}),
        "#/properties/a/minProperties",
    ),
    "unserved": (within({"type": "array", "uniqueItems": True}), "#/properties/a/uniqueItems"),
}


@pytest.mark.parametrize("name", sorted(ROWS))
@pytest.mark.parametrize("bad", BAD)
def test_the_schema_that_is_wrong_is_named_in_every_format(outputs: StructuredOutputs, name: str, bad: str) -> None:
    schema, pointer = BAD[bad]
    with pytest.raises(RequestError) as e:
        outputs.source(asked(name, schema, free=random.Random(name).random() < 0.5))
    assert e.value.param == FIELD
    assert str(e.value).startswith(f"{FIELD}: ")
    assert pointer in str(e.value) or "is not supported in this model's call format" in str(e.value)
    for words in ("at 1(", "at 2(", "#/properties/arguments", "tool_choice: "):
        assert words not in str(e.value)


def test_a_fault_of_no_one_schema_is_the_tools(outputs: StructuredOutputs) -> None:
    params = asked("hermes", GOOD)
    params.grammar = "start: nowhere"
    with pytest.raises(RequestError, match=r"^tools: ") as e:
        outputs.source(params)
    assert e.value.param == "tools"


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "propertyNames": {"enum": ["red", "green"]}, "additionalProperties": DIGIT, "minProperties": 2},
        {"type": "object", "patternProperties": {"^[0-9]$": DIGIT}, "additionalProperties": False, "minProperties": 5},
        {
            "type": "object", "patternProperties": {'^(a"|\\\\|é|\n)$': DIGIT}, "additionalProperties": False,
            "minProperties": 2,
        },
    ],
)  # fmt: skip
def test_few_keys_are_counted_in_calls_as_in_answers(outputs: StructuredOutputs, schema: dict[str, Any]) -> None:
    assert outputs.source(StructuredOutputsParams(json=schema))
    for tool in (schema, within(schema)):
        assert outputs.source(asked("hermes", tool))
