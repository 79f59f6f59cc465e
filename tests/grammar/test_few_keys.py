"""Objects that can have few keys close where none is left. Random texts satisfy the schema, as jsonschema judges."""

from __future__ import annotations

import json
import random
from itertools import combinations, product
from typing import Any

import grammar_rig as rig
import jsonschema
import pytest
from amounts import some

from thalweg.grammar.schema.keys import possible_keys
from thalweg.grammar.schema.ordered import _number_of_sets, _sets
from thalweg.grammar.source import GrammarSource

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
ANY = {"additionalProperties": DIGIT}
SHUT = {"type": "object", "additionalProperties": False}


def keyed(pattern: str, **more: Any) -> dict[str, Any]:
    return {**SHUT, "patternProperties": {pattern: DIGIT}, **more}


SCHEMAS: dict[str, dict[str, Any]] = {
    "one key": keyed("^red$"),
    "three keys": keyed("^(red|green|blue)$"),
    "two of three": keyed("^(red|green|blue)$", minProperties=2),
    "all of three": keyed("^(red|green|blue)$", minProperties=3, maxProperties=3),
    "one key begins another": keyed("^(a|ab|abc)$", minProperties=2),
    "letters": keyed("^[a-e]$", minProperties=3),
    "short names": keyed("^[ab]{1,2}$"),
    "the empty name": {"type": "object", "propertyNames": {"maxLength": 0}, **ANY},
    "names of a pattern": {"type": "object", "propertyNames": {"pattern": "^(x|y)$"}, **ANY},
    "names listed": {"type": "object", "propertyNames": {"enum": ["x", "y", "z"]}, "minProperties": 2},
    "one name": {"type": "object", "propertyNames": {"const": "x"}, "minProperties": 1},
    "names listed, with a schema of all values": {
        "type": "object", "propertyNames": {"enum": ["red", "green"]}, "minProperties": 2, **ANY,
    },
    "names listed and properties": {
        "propertyNames": {"enum": ["a", "b", "c"]}, "properties": {"a": {"type": "null"}}, "minProperties": 2, **ANY,
    },
    "names listed, of a length": {
        "propertyNames": {"enum": ["", "a", "b", "long"], "minLength": 1, "maxLength": 1}, "minProperties": 2,
    },
    "names of a pattern, of a length": {"propertyNames": {"pattern": "^[ab]{1,2}$", "maxLength": 1}, "minProperties": 2, **ANY},
    "a name by its number": keyed(r"^(a\u00e9|\x41)$", minProperties=2),
    "a name that is refused": {**SHUT, "patternProperties": {"^(a|b)$": DIGIT, "^a$": False}, "minProperties": 1},
    "five digits of ten": keyed("^[0-9]$", minProperties=5),
    "five digits to six": keyed("^[0-8]$", minProperties=5, maxProperties=6),
    "counted in a part": {"allOf": [keyed("^[a-d]$"), {"minProperties": 2}, {"maxProperties": 3}]},
    "a definition of a name that is made": {**keyed("^[ab]$", minProperties=1), "$defs": {"ordered_0": {"type": "null"}}},
    "optional, counted": {**SHUT, "properties": dict.fromkeys("abc", DIGIT), "minProperties": 2},
    "optional and required, counted": {
        **SHUT, "properties": dict.fromkeys("abc", DIGIT), "required": ["b"], "minProperties": 2, "maxProperties": 2,
    },
    "named and matched": keyed("^(b|c)$", properties={"a": DIGIT}, minProperties=2),
    "named and matched twice": keyed("^[ab]$", properties={"a": {"minimum": 5}}, required=["a"], minProperties=2),
    "patterns that meet": {**SHUT, "patternProperties": {"^[ab]$": DIGIT, "^[bc]$": {"type": "integer", "minimum": 5}}},
    "required by pattern": keyed("^(red|green)$", required=["green"]),
    "keys to escape": keyed('^("|\\\\)$'),
    "keys to escape, all of them": keyed('^("|\\\\)$', minProperties=2),
    "a key to escape, and one that is plain": keyed("^(\\\\|b)$", minProperties=2),
    "an end of line, and a letter": keyed("^(\n|b)$", minProperties=2),
    "quotes": keyed("^[\"']$", minProperties=2),
    "a tab, and a slash": keyed("^(/|\t)$", minProperties=2),
    "one begins as a plain key does": keyed('^(a"|\\\\|\n|a)$', minProperties=4),
    "control characters, each with two spellings": keyed("^(\x1f|\n|\x08|\x7f)$", minProperties=4),
    "escapes in a row": keyed("^(\n\n|\n\\\\|\n)$", minProperties=3),
    "keys that begin within a token": keyed("^(:|,|:1)$", minProperties=2),
    "a name to escape, twice": {
        "allOf": [{**SHUT, "properties": {"a b": DIGIT}, "minProperties": 1}, {**SHUT, "properties": {"a b": DIGIT, "c": {}}}],
    },
    "any letter": keyed("^.$", required=["a"]),
    "words beyond ASCII": keyed("^(ü|üb)$", minProperties=2),
    "in a list": {"type": "array", "items": keyed("^(a|b)$"), "minItems": 2, "maxItems": 3},
    "one in another": {**SHUT, "patternProperties": {"^(a|b)$": keyed("^(a|b)$", minProperties=1)}, "minProperties": 1},
    "counted, or another value": {**keyed("^[a-d]$", minProperties=2), "type": ["object", "integer"]},
    "two at once": {"allOf": [keyed("^(a|b|c)$"), {"type": "object", "propertyNames": {"pattern": "^[bcd]$"}}]},
    "either": {"anyOf": [keyed("^a$"), keyed("^(b|c)$", minProperties=2)]},
    "referred to": {"$ref": "#/$defs/o", "$defs": {"o": keyed("^(a|b)$", minProperties=1)}},
    "unevaluated": {"type": "object", "patternProperties": {"^(a|b)$": DIGIT}, "unevaluatedProperties": False},
    "dependent": {**keyed("^(a|b|c)$"), "dependentRequired": {"a": ["b"]}},
    "a tail in common": keyed("^([a-z]_id|x)$", maxProperties=4),
}  # fmt: skip


def strict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({k for k, _ in pairs}) == len(pairs), f"a key twice: {pairs}"
    return dict(pairs)


def write(made: GrammarSource, rng: random.Random, most: int = 200) -> str | None:
    """A text by tokens drawn at random, of which most go on: a comma before a brace. None: it did not end."""
    matcher = rig.grammars().matcher(made)
    out = bytearray()
    for _ in range(most):
        now = sorted(rig.allowed(matcher))
        on = [t for t in now if b"," in rig.VOCABULARY.tokens[t] or b'"' in rig.VOCABULARY.tokens[t]]
        letters = [t for t in now if rig.VOCABULARY.tokens[t].strip()]
        token = rng.choice(on if on and rng.random() < 0.7 else letters if letters and rng.random() < 0.9 else now)
        if token == rig.EOS:
            return out.decode()
        out += rig.VOCABULARY.tokens[token]
        matcher.accept([token])
    return None


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.sampled(4)
def test_an_object_closes_where_no_key_is_left(name: str) -> None:
    schema, ended = SCHEMAS[name], 0
    made = rig.served("json", schema)
    for seed in range(some(5, 40)):
        text = write(made, random.Random(seed))
        if text is not None:
            ended += 1
            jsonschema.Draft202012Validator(schema).validate(json.loads(text, object_pairs_hook=strict))
    assert ended


MANY = {"a tail in common", "any letter"}
"""Those that are not known to match few names, or whose sets of keys are many."""


@pytest.mark.parametrize("name", [n for n in SCHEMAS if n not in MANY])
@pytest.mark.parametrize("place", ["Lark", "tag"])
@pytest.mark.sampled(8)
def test_an_object_inside_other_text_has_no_key_twice(name: str, place: str) -> None:
    schema, ended = SCHEMAS[name], 0
    tag = {"format": {"type": "tag", "begin": "<", "content": {"type": "json_schema", "json_schema": schema}, "end": ">"}}
    asked = {"Lark": ("grammar", f'start: "<" %json {json.dumps(schema)} ">"'), "tag": ("structural_tag", tag)}
    made = rig.served(*asked[place])
    for seed in range(some(3, 20)):
        text = write(made, random.Random(seed))
        if text is not None:
            ended += 1
            jsonschema.Draft202012Validator(schema).validate(json.loads(text[1:-1], object_pairs_hook=strict))
    assert ended


def test_a_length_of_names_that_match_many_is_refused_in_the_callers_words() -> None:
    schema = {"items": {"type": "object", "propertyNames": {"maxLength": 1, "pattern": "^[a-c]"}, "minProperties": 3}}
    for kind, value in (("json", schema), ("grammar", f"start: %json {json.dumps(schema)}")):
        error = rig.refusal(kind, value)
        assert error.pointer == "#/items/propertyNames/maxLength"
        assert "put the length in the pattern" in error.why


def test_sets_of_names_are_listed_whole() -> None:
    for count, least, most in product(range(6), range(7), range(6)):
        names, found = "abcdef"[:count], list(_sets("abcdef"[:count], least, most))
        sets = {frozenset((*a, *c)) for a, others in found for n in range(len(others) + 1) for c in combinations(others, n)}
        assert sets == {frozenset(c) for n in range(least, most + 1) for c in combinations(names, n)}
        assert len(found) == _number_of_sets(count, least, min(most, count))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "object", "properties": {"a": DIGIT}, "minProperties": 2}, "all properties are named"),
        (keyed("^[a-z]+$", minProperties=2), "all properties are named"),
        (keyed("^[a-m]$", minProperties=5), "256 sets"),
    ],
)
def test_keys_that_cannot_be_counted_inside_other_text_are_refused_with_a_pointer(schema: dict[str, Any], why: str) -> None:
    error = rig.refusal("grammar", f"start: %json {json.dumps({'items': schema})}")
    assert why in error.why
    assert error.pointer == "#/items/minProperties"
    assert rig.served("json", {"items": schema})


@pytest.mark.parametrize(
    "schema",
    [
        keyed("^(a|b|c)$", minProperties=4),
        {**SHUT, "properties": {"a": DIGIT, "b": False}, "minProperties": 2},
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "minProperties": 3},
        {"type": "object", "propertyNames": {"maxLength": 0}, "minProperties": 2},
        {"type": "object", "propertyNames": {"pattern": "^[ab]$"}, **keyed("^[bc]$"), "minProperties": 2},
        {"propertyNames": {"enum": ["a", "b"]}, **keyed("^[a-z]+_id$", properties={"a": DIGIT}), "minProperties": 2},
    ],
)
def test_a_schema_that_wants_more_keys_than_it_allows_is_refused_before_work(schema: dict[str, Any]) -> None:
    error = rig.refusal("json", schema)
    assert "nsatisfiable" in error.why
    inside = rig.served("json", {"type": "object", "properties": {"p": schema}})
    assert rig.accepts(inside, "{}")
    assert not rig.accepts(inside, '{"p":{"a":1')


def test_keys_are_counted_by_every_schema_that_must_hold() -> None:
    few: dict[str, Any] = {**SHUT, "properties": {"a": DIGIT, "b": DIGIT, "c": False}}
    assert possible_keys([few]) == {"a", "b"}
    for other, left in (
        (keyed("^a+$"), {"a"}),
        (keyed("^\\x{61}.*$"), {"a", "b"}),  # Python's re reads no such escape: nothing is left out
        ({"patternProperties": {"^[ac]$": False}}, {"b"}),
        ({"properties": {"a": False}}, {"b"}),
        (keyed("(?i)^A$"), {"a", "b"}),
    ):
        assert possible_keys([few, other]) == left
    assert possible_keys([keyed("^a+$"), {}]) is None


def test_every_key_may_still_come_in_any_order() -> None:
    made = rig.served("json", keyed("^(red|rose|green)$"))
    for text in ('{"rose":1,"red":2,"green":3}', '{"green":1,"red":2}', '{"red":1}', "{}"):
        assert rig.accepts(made, text)
    for text in ('{"red":1,"red":2}', '{"red":1,"rose":2,"green":3,', '{"re":1}'):
        assert not rig.accepts(made, text)


def test_keys_with_escapes_are_no_key_again_in_another_spelling() -> None:
    made = rig.served("json", keyed("^(\\x{a}|\\x{1f}|b)$", minProperties=3))
    for text in (b'{"b":1,"\\n":2,"\\u001f":3}', b'{"b":1,"\\u001F":2,"\\u000a":3}'):
        assert rig.accepts(made, text), text
    for text, left in (
        (b'{"b":1,"\\n":2,"\\u00', b"1"),
        (b'{"b":1,"\\u000A":2,"\\', b"u"),
        (b'{"b":1,"\\u001F":2,"\\u00', b"0"),
    ):
        matcher = rig.of_bytes().matcher(made)
        matcher.accept(list(text))
        assert rig.allowed(matcher) == set(left), text


def test_keys_are_written_plainly_where_both_ways_lead_on() -> None:
    matcher = rig.of_bytes().matcher(rig.served("json", keyed("^(\\\\|b)$", minProperties=2)))
    matcher.accept(list(b'{"'))
    assert rig.allowed(matcher) == {ord("b")}
    matcher.accept(list(b'b":1,"'))
    assert rig.allowed(matcher) == {ord("\\")}


def test_a_letter_that_leads_to_used_keys_only_is_masked() -> None:
    matcher = rig.of_bytes().matcher(rig.served("json", keyed("^(red|ride|blue)$")))
    matcher.accept(list(b'{"red":1,"ride":2,"'))
    assert rig.allowed(matcher) == {ord("b")}
    matcher = rig.of_bytes().matcher(rig.served("json", keyed("^(red|ride)$")))
    matcher.accept(list(b'{"red":1,"r'))
    assert rig.allowed(matcher) == {ord("i")}


@pytest.mark.parametrize(
    ("schema", "looks"),
    [
        ({"type": "object"}, False),
        ({**SHUT, "properties": {"a": DIGIT}}, False),
        (keyed("^x-"), False),
        (keyed("^[a-z]+$"), False),
        (keyed("^[a-z]{1,9}$"), True),
        ({"type": "array", "items": keyed("^a$")}, True),
        ({"allOf": [keyed("^a+$"), keyed("^[ab]b*$")]}, True),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, True),
    ],
)
def test_only_objects_whose_keys_may_run_out_cost_a_look_ahead(schema: dict[str, Any], looks: bool) -> None:
    assert rig.source("json", schema).few_keys is looks


def test_an_object_with_a_key_for_every_pattern_of_a_long_list_stays_quick_to_follow() -> None:
    """Counted in masks: a look ahead goes through the letters of used keys, each once."""
    names = [f"{a}{b}" for a in "abcdefgh" for b in "abcdefgh"]
    matcher = rig.of_bytes().matcher(rig.served("json", keyed("^[a-h]{2}$")))
    matcher.accept(list(b"{" + b",".join(f'"{n}":1'.encode() for n in names[:-1])))
    asked: list[bytes] = []
    inner, look = type(matcher), type(matcher).mask_once
    inner.mask_once = lambda self, words: asked.append(self.watch.key) or look(self, words)  # type: ignore[method-assign]
    try:
        assert ord(",") in rig.allowed(matcher)
    finally:
        inner.mask_once = look  # type: ignore[method-assign]
    assert len(asked) < 100
