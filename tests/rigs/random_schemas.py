"""Random JSON schemas, wide rather than likely, and who judges an answer: jsonschema, and a reader that counts keys."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema

NAMES = ("a", "b", "c d", "é", '"q"', "a/b", "x-1", "né~")
PATTERNS = ("^[a-c]{1,4}$", "[0-9]", "^x", "z$", "^(ab|ba)*$", r"^\w+$", r"^\d{2}-\d{2}$", "^[^a-z]{0,3}$", "")
FORMATS = ("date", "date-time", "email", "ipv4", "ipv6", "uuid", "phone")
VALUES: tuple[Any, ...] = (1, -2, 0.5, "a", "b c", "", "é\n", '"', None, True, False, [1], [], {"k": 2}, {})


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A schema of at most so many levels, in one draft."""
    made = _whole(rng, depth)
    while older(made) and newer(made):
        made = _whole(rng, depth)
    return made


def _whole(rng: random.Random, depth: int) -> dict[str, Any]:
    made = _schema(rng, depth)
    if rng.random() < 0.2:
        kept = rng.choice(["$defs", "definitions"])
        inner = _schema(rng, 1)
        if rng.random() < 0.4:  # a tree
            inner = {
                "type": "object",
                "properties": {"v": inner, "next": {"$ref": f"#/{kept}/one"}},
                "additionalProperties": False,
            }
        ref = {"$ref": f"#/{kept}/one"}
        wrapped = rng.choice([{"type": "array", "items": ref, "maxItems": 2}, {"anyOf": [made, ref]}, {"allOf": [ref]}, ref])
        return {**wrapped, kept: {"one": inner}}
    return made


def _schema(rng: random.Random, depth: int) -> dict[str, Any]:
    kind = rng.choice(_LEAVES if not depth else _LEAVES + _TREES * 2)
    made = kind(rng, depth)
    if rng.random() < 0.1:
        made = {"title": "t", "description": "about", **made}
    return made


def _some(rng: random.Random, depth: int, most: int = 3) -> list[dict[str, Any]]:
    return [_schema(rng, depth - 1) for _ in range(rng.randrange(1, most + 1))]


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    match rng.randrange(6):
        case 0:
            return {**made, "pattern": rng.choice(PATTERNS)}
        case 1:
            return {**made, "format": rng.choice(FORMATS)}
        case 2:
            return {**made, "pattern": rng.choice(PATTERNS), "maxLength": rng.randrange(2, 7)}
    least = rng.randrange(3)
    return {**made, "minLength": least, "maxLength": least + rng.randrange(6)}


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(-300, 300)
    made: dict[str, Any] = {"type": "integer"}
    for key, value in (
        ("minimum", low),
        ("exclusiveMaximum", low + rng.randrange(1, 300)),
        ("multipleOf", rng.choice([2, 3, 7])),
    ):
        if rng.random() < 0.5:
            made[key] = value
    return made


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.choice([-5, 0, 0.5, 0.1, 7.25, 1000])
    made: dict[str, Any] = {"type": "number"}
    for key, value in (
        (rng.choice(["minimum", "exclusiveMinimum"]), low),
        (rng.choice(["maximum", "exclusiveMaximum"]), low + rng.choice([0.5, 1, 2.75, 3000])),
        ("multipleOf", rng.choice([0.5, 2, 0.25])),
    ):
        if rng.random() < 0.5:
            made[key] = value
    return made


def _plain(rng: random.Random, depth: int) -> dict[str, Any]:
    return rng.choice(
        [{"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null"]}, {"type": ["boolean", "string"], "maxLength": 3}]
    )


def _values(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": rng.sample(VALUES, rng.randrange(1, 5))} if rng.random() < 0.6 else {"const": rng.choice(VALUES)}


def _anything(rng: random.Random, depth: int) -> dict[str, Any]:
    return rng.choice(
        [{}, {"type": "object"}, {"type": "array", "maxItems": 2}, {"not": {"type": rng.choice(["object", "array"])}}]
    )


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randrange(1, 5))
    made: dict[str, Any] = {"type": "object", "properties": {n: _schema(rng, depth - 1) for n in names}}
    if rng.random() < 0.8:
        made["required"] = rng.sample(names, rng.randrange(len(names) + 1))
    if rng.random() < 0.85:
        made["additionalProperties"] = rng.choice([False, False, _schema(rng, 0)])
    if rng.random() < 0.15:
        made["patternProperties"] = {rng.choice(["^p", "^[a-b]$", "_id$"]): _schema(rng, 0)}
    if rng.random() < 0.1:
        made[rng.choice(["dependentRequired", "dependencies"])] = {names[0]: [rng.choice(names)]}
    if rng.random() < 0.05:
        made["dependentSchemas"] = {names[0]: {"required": [rng.choice(NAMES)]}}
    if rng.random() < 0.1:
        made["minProperties"] = rng.randrange(len(names) + 1)
    if rng.random() < 0.1:
        made["maxProperties"] = rng.randrange(1, 4)
    if rng.random() < 0.05:
        made.pop("additionalProperties", None)
        made["unevaluatedProperties"] = False
    return made


def _map(rng: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "additionalProperties": _schema(rng, depth - 1)}
    if rng.random() < 0.6:
        made["propertyNames"] = rng.choice([{"maxLength": 3}, {"pattern": "^[a-d]{1,2}$"}, {"enum": ["k", "l", "m"]}])
    made["maxProperties"] = rng.randrange(1, 4)
    return made


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randrange(2)
    made: dict[str, Any] = {"type": "array", "items": _schema(rng, depth - 1), "minItems": least}
    made["maxItems"] = least + rng.randrange(1, 4)
    match rng.randrange(8):
        case 0:
            made["prefixItems"] = _some(rng, depth, 2)
        case 1:
            made["contains"] = _schema(rng, 0)
        case 2:
            made["uniqueItems"] = True
            made["items"] = {"enum": rng.sample(["r", "w", "x", 1, 2], rng.randrange(1, 5))}
        case 3:
            made["items"] = _some(rng, depth, 2)
            made["additionalItems"] = rng.choice([False, _schema(rng, 0)])
    return made


def _choice(rng: random.Random, depth: int) -> dict[str, Any]:
    return {rng.choice(["anyOf", "anyOf", "oneOf"]): _some(rng, depth)}


def _tagged(rng: random.Random, depth: int) -> dict[str, Any]:
    """What generated clients write most: one of several objects, told apart by a constant."""
    branches = []
    for name in ("cat", "dog", "owl")[: rng.randrange(2, 4)]:
        fields = {"kind": {"const": name}, "v": _schema(rng, depth - 1)}
        branches.append({"type": "object", "properties": fields, "required": ["kind", "v"], "additionalProperties": False})
    return {"oneOf": branches}


def _all(rng: random.Random, depth: int) -> dict[str, Any]:
    first = _schema(rng, depth - 1)
    return {"allOf": [first, rng.choice([{"title": "t"}, {"type": list(_TYPES)[: rng.randrange(2, 7)]}, _schema(rng, 0)])]}


def _beside(rng: random.Random, depth: int) -> dict[str, Any]:
    """Keywords beside a choice: both count."""
    return {**_object(rng, depth), rng.choice(["anyOf", "oneOf"]): [{"required": [n]} for n in rng.sample(NAMES, 2)]}


def _not(rng: random.Random, depth: int) -> dict[str, Any]:
    made = _schema(rng, depth - 1)
    return {**made, "not": _values(rng, 0)} if "not" not in made else made


def _if(rng: random.Random, depth: int) -> dict[str, Any]:
    asked = rng.choice([{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"type": "string"}, {"minimum": 3}])
    return {**_schema(rng, depth - 1), "if": asked, "then": _schema(rng, 0), "else": rng.choice([True, _schema(rng, 0)])}


_TYPES = ("object", "array", "string", "number", "boolean", "null", "integer")
_Kind = Callable[[random.Random, int], dict[str, Any]]
_LEAVES: list[_Kind] = [_string, _string, _integer, _number, _plain, _values, _anything]
_TREES: list[_Kind] = [_object, _object, _object, _map, _array, _array, _choice, _tagged, _all, _beside, _not, _if]


def fault(text: str, schema: dict[str, Any]) -> str | None:
    """What is wrong with an answer, or None."""
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_float=_finite, parse_constant=_no_constant)
    except ValueError as e:
        return f"no JSON: {e}"
    kind = jsonschema.Draft7Validator if older(schema) else jsonschema.Draft202012Validator
    error = jsonschema.exceptions.best_match(kind(schema, format_checker=kind.FORMAT_CHECKER).iter_errors(value))
    return None if error is None else f"{error.json_path}: {error.message:.200}"


def older(schema: Any) -> bool:
    """Is a list of items, or dependencies, somewhere in it? The latest draft has neither."""
    return any("dependencies" in s or isinstance(s.get("items"), list) for s in _objects(schema))


def newer(schema: Any) -> bool:
    """Are there keywords in it that draft 7 has not?"""
    return any(not _NEWER.isdisjoint(s) for s in _objects(schema))


_NEWER = {"prefixItems", "dependentRequired", "dependentSchemas", "unevaluatedProperties"}


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(inner)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({k for k, _ in pairs}) < len(pairs):
        raise ValueError(f"a key twice: {[k for k, _ in pairs]}")
    return dict(pairs)


def _finite(text: str) -> float:
    if math.isinf(float(text)):
        raise ValueError(f"{text} is read as infinite")
    return float(text)


def _no_constant(name: str) -> None:
    raise ValueError(name)
