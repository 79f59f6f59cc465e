"""The official JSON-Schema-Test-Suite: nothing invalid is accepted, most is served, and each refusal says where.

`suite/README.md` says where it is from.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import grammar_rig as rig
import jsonschema
import pytest
from amounts import some

from thalweg.grammar.cell import judge
from thalweg.grammar.source import GrammarError, GrammarSource

SUITE = [json.loads(line) for line in (Path(__file__).parent / "suite/draft2020-12.jsonl").read_text().splitlines()]
FILES = sorted({g["file"] for g in SUITE})
LEAST_SERVED = 0.85


def source(schema: Any) -> GrammarSource | GrammarError:
    try:
        return judge(rig.asked("json", schema), rig.compiler())
    except GrammarError as e:
        return e


@pytest.mark.parametrize("file", FILES)
@pytest.mark.sampled(11)
def test_no_invalid_instance_is_accepted(file: str) -> None:
    for group in (g for g in SUITE if g["file"] == file):
        made = source(group["schema"])
        if isinstance(made, GrammarError):
            assert made.pointer.startswith("#"), (group["description"], made.why)
            continue
        for description, data, valid in group["tests"]:
            text = json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogatepass")
            compiled = rig.compiler().compile(made.text)
            accepted = compiled.try_consume_tokens(list(text)) == len(text) and compiled.is_accepting()
            assert valid or not accepted, f"{group['description']}: {description}"


def test_most_schemas_are_served() -> None:
    served = sum(isinstance(source(g["schema"]), GrammarSource) for g in SUITE)
    assert served >= LEAST_SERVED * len(SUITE), f"{served} of {len(SUITE)}"


def random_schema(rng: random.Random, depth: int = 0) -> Any:
    """Of keywords that are rewritten, in any company."""
    deeper = lambda: random_schema(rng, depth + 1)  # noqa: E731
    plain = [
        lambda: {"type": rng.choice(["string", "integer", "number", "boolean", "null", "array", "object"])},
        lambda: {"enum": rng.sample(["a", "ab", "", 1, 2, 3.5, True, None, [], {}], rng.randrange(1, 4))},
        lambda: {"const": rng.choice(["a", "b", 1, False])},
        lambda: {"minimum": rng.randrange(5), "type": "integer"},
        lambda: {"maxLength": rng.randrange(3)},
        lambda: rng.choice([True, {}]),
    ]
    if depth > 2:
        return rng.choice(plain)()
    names = ["a", "b", "c"]
    rich = [
        lambda: {"properties": {n: deeper() for n in rng.sample(names, 2)}, "required": rng.sample(names, rng.randrange(3))},
        lambda: {"type": "object", "properties": {"a": deeper()}, "unevaluatedProperties": rng.choice([False, deeper()])},
        lambda: {"anyOf": [deeper(), deeper()], "unevaluatedProperties": False},
        lambda: {"allOf": [deeper(), deeper()]},
        lambda: {"oneOf": [deeper(), deeper()]},
        lambda: {"not": deeper()},
        lambda: {"if": deeper(), "then": deeper(), "else": deeper()},
        lambda: {"type": "array", "contains": deeper(), "minContains": rng.randrange(3), "maxContains": rng.randrange(2, 4)},
        lambda: {"type": "array", "prefixItems": [deeper()], "unevaluatedItems": deeper()},
        lambda: {"type": "object", "propertyNames": rng.choice([{"enum": names}, {"pattern": "^a"}, {"maxLength": 2}])},
        lambda: {"type": "object", "dependentRequired": {"a": ["b"]}, "dependentSchemas": {"b": deeper()}},
        lambda: {"type": "array", "items": deeper(), "maxItems": 3},
        lambda: {
            "items": {"enum": rng.sample([1, "a", None, True, [], 1.5], 3)},
            "uniqueItems": True,
            "minItems": rng.randrange(3),
        },
        lambda: {"$ref": "#/$defs/d"},
    ]
    return rng.choice([*plain, *rich, *rich])()


def walk(made: GrammarSource, rng: random.Random, most: int = 150) -> str | None:
    """A random text of a grammar, biased towards structure. None: it did not end."""
    matcher = rig.grammars().matcher(made)
    out = bytearray()
    likely = set(b'{}[]",:abc12')
    for _ in range(most):
        try:
            now = sorted(rig.allowed(matcher))
        except GrammarError:
            return None
        liked = [i for i in now if i in likely or i == rig.EOS]
        token = rng.choice(liked if liked and rng.random() < 0.95 else now)
        if token == rig.EOS:
            return out.decode()
        out += rig.VOCABULARY.tokens[token]
        matcher.accept([token])
    return None


def strict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({k for k, _ in pairs}) == len(pairs), f"a key twice: {pairs}"
    return dict(pairs)


@pytest.mark.parametrize("part", range(4))
@pytest.mark.sampled(1)
def test_texts_of_random_schemas_satisfy_them(part: int) -> None:
    rng, ended = random.Random(part), 0
    for _ in range(some(30, 120)):
        schema = random_schema(rng)
        schema = {**(schema if isinstance(schema, dict) else {}), "$defs": {"d": random_schema(rng, 3)}}
        made = source(schema)
        for _ in range(3) if isinstance(made, GrammarSource) else ():
            text = walk(made, rng)
            if text is not None:
                ended += 1
                jsonschema.Draft202012Validator(schema).validate(json.loads(text, object_pairs_hook=strict))
    assert ended > some(15, 60)


KEYWORDS = [
    *("type", "enum", "const", "required", "properties", "additionalProperties", "propertyNames", "dependentRequired"),
    *("dependentSchemas", "dependencies", "unevaluatedProperties", "items", "prefixItems", "contains", "minItems"),
    *("maxContains", "uniqueItems", "allOf", "oneOf", "not", "if", "$ref", "$defs", "pattern", "format", "minimum"),
    "exclusiveMinimum",
]


def test_schemas_of_nonsense_are_served_or_refused_with_a_pointer() -> None:
    """Values of the wrong kind anywhere: no other error, and none without a place."""
    rng = random.Random(0)
    values: list[Any] = [
        None,
        True,
        0,
        -1,
        2.5,
        "",
        "a",
        "#/$defs/x",
        [],
        [1],
        ["a"],
        {},
        {"a": 1},
        {"a": []},
        [{}],
        [[]],
        {"a": {}},
    ]
    for _ in range(some(100, 400)):
        schema = {rng.choice(KEYWORDS): rng.choice(values) for _ in range(rng.randrange(1, 5))}
        made = source(schema if rng.random() < 0.5 else {"type": "object", "properties": {"p": schema}, "required": ["p"]})
        assert isinstance(made, GrammarSource) or made.pointer.startswith("#"), (schema, made)
