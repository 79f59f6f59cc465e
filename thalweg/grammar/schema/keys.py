"""Objects with few possible keys: lists the keys, and rewrites schemas that count properties.

The compiler counts properties only where all named ones are required. Under minProperties or maxProperties, an optional
property therefore becomes a pattern that matches only its name. Such properties come in any order. The compiler also requires
that no two patterns match one name, so patterns of few names are split into one per name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from thalweg.grammar import regexes
from thalweg.grammar.schema.opposite import TYPES
from thalweg.grammar.schema.walk import NonEvaluatingSchema, children

COUNTS = ("minProperties", "maxProperties")
MOST_NAMES = 64
"""Most names that all patterns together may match, to be split into one pattern per name."""


def count_keys(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with minProperties and maxProperties in a form that the compiler can count.

    No object satisfies a schema that requires more keys than are possible."""
    parts = parts_of(schema)
    names = possible_keys(parts)
    impossible = names is not None and max(p.get("minProperties", 0) for p in parts) > len(names)
    if any(k in p for k in COUNTS for p in parts):
        required = {n for p in parts for n in p.get("required", ())}
        schema = _in_parts(schema, lambda p: _without_optional(p, required))
    patterns = [p for part in parts_of(schema) for p in part.get("patternProperties") or ()]
    listed = {p: regexes.texts(p) for p in patterns}
    texts = [t for found in map(listed.__getitem__, patterns) for t in found or ()]
    if len(set(texts)) < len(texts) <= MOST_NAMES and None not in listed.values():
        schema = _in_parts(schema, lambda p: _apart(p, listed))
    if impossible:
        others = NonEvaluatingSchema(type=[t for t in TYPES if t != "object"])
        schema = {**schema, "allOf": [*schema.get("allOf", ()), others]}
    return schema


def parts_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The schema and, recursively, the schemas of its allOf."""
    inner = [p for p in schema.get("allOf", ()) if isinstance(p, dict)]
    return [schema, *(part for p in inner for part in parts_of(p))]


def _in_parts(schema: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    result = change(schema)
    if "allOf" in result:
        result["allOf"] = [_in_parts(p, change) if isinstance(p, dict) else p for p in result["allOf"]]
    return result


def _without_optional(schema: dict[str, Any], required: set[str]) -> dict[str, Any]:
    """A copy with optional properties as patterns. The copy is a `NonEvaluatingSchema` if the schema is one."""
    optional = [n for n in schema.get("properties", ()) if n not in required]
    new = type(schema)(schema)
    if optional:
        new["properties"] = {n: s for n, s in schema["properties"].items() if n in required}
        patterns = {f"^{regexes.literal(n)}$": schema["properties"][n] for n in optional}
        new["patternProperties"] = {**schema.get("patternProperties", {}), **patterns}
    return new


def _apart(schema: dict[str, Any], listed: Mapping[str, Sequence[str] | None]) -> dict[str, Any]:
    """A copy with one pattern per name that its patterns match. listed: pattern -> names."""
    new = type(schema)(schema)
    patterns = schema.get("patternProperties") or {}
    if patterns:
        names = dict.fromkeys(t for p in patterns for t in listed[p] or ())
        schemas = {t: [s for p, s in patterns.items() if t in (listed[p] or ())] for t in names}
        new["patternProperties"] = {
            f"^{regexes.literal(t)}$": found[0] if len(found) == 1 else {"allOf": found} for t, found in schemas.items()
        }
    return new


def possible_keys(parts: Sequence[dict[str, Any]]) -> set[str] | None:
    """A superset of the keys possible in an object that satisfies all schemas. None: unlimited."""
    found: set[str] | None = None
    for part in parts:
        here = _keys_of(part)
        if here is not None:
            found = here if found is None else found & here
    return None if found is None else {n for n in found if all(_may_have(p, n) for p in parts)}


def _may_have(schema: dict[str, Any], name: str) -> bool:
    """May an object of this schema have this key? True if a pattern is not supported."""
    named = schema.get("properties", {})
    if name in named:
        return named[name] is not False
    matched = [value for pattern, value in schema.get("patternProperties", {}).items() if _may_match(pattern, name)]
    if matched:
        return any(value is not False for value in matched)
    return schema.get("additionalProperties") is not False


def _may_match(pattern: str, name: str) -> bool:
    """Does the pattern match the name? True if it is not supported."""
    listed = regexes.texts(pattern)
    if listed is not None:
        return name in listed
    try:
        return regexes.parse(pattern) is None or re.search(pattern, name) is not None
    except re.error:
        return True


def _keys_of(schema: dict[str, Any]) -> set[str] | None:
    if schema.get("additionalProperties") is not False:
        return None
    names = {n for n, s in schema.get("properties", {}).items() if s is not False}
    for pattern, value in schema.get("patternProperties", {}).items():
        listed = [] if value is False else regexes.texts(pattern)
        if listed is None:
            return None
        names |= set(listed)
    return names


def may_run_out(schema: Any) -> bool:
    """May an object of this schema or a nested one run out of the keys that its patterns allow? schema: a prepared one."""
    limited, joined = 0, False
    for at in _inside(schema):
        joined |= "allOf" in at or "$ref" in at
        patterns = at.get("patternProperties") or {}
        if False in patterns.values():
            return True
        if patterns and at.get("additionalProperties", True) is False:
            limited += 1
            if not all(map(regexes.endless, patterns)):
                return True
    return limited > 1 and joined


def _inside(schema: Any) -> Iterator[dict[str, Any]]:
    todo = [schema]
    while todo:
        at = todo.pop()
        if isinstance(at, dict):
            yield at
            todo += [inner for _, inner in children(at)]
