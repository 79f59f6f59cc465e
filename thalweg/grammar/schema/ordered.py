"""Orders the keys of objects in text that `thalweg.grammar.guard` does not watch: tags, tool calls, and schemas in grammars.

A pattern allows repeated keys, and only the guard prevents them. Here patterns of few names become properties, each once and in
a fixed order. minProperties and maxProperties become alternatives, one for each set of keys that they allow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import comb
from typing import Any

from thalweg.grammar import regexes
from thalweg.grammar.schema.keys import COUNTS, parts_of, possible_keys
from thalweg.grammar.schema.opposite import TYPES
from thalweg.grammar.schema.walk import children, put
from thalweg.grammar.source import GrammarError

MOST_SETS = 256
"""Most sets of keys for one object. This many compile in a tenth of a second."""
OF_KEYS = frozenset({"properties", "patternProperties", "additionalProperties", "required", *COUNTS})


class _UnknownError(Exception):
    """An unsupported pattern."""


class _Shared(dict[str, Any]):
    """Definitions to add to a root schema, under unused names."""

    def __init__(self, known: dict[str, Any]) -> None:
        super().__init__()
        self._prefix = "ordered_"
        while any(name.startswith(self._prefix) for name in known):
            self._prefix += "_"

    def reference(self, schema: Any) -> Any:
        """Adds a schema used many times. Returns a reference to it."""
        if not isinstance(schema, dict):
            return schema
        name = f"{self._prefix}{len(self)}"
        self[name] = schema
        return {"$ref": f"#/$defs/{name}"}


def order_keys(schema: Any) -> Any:
    """A prepared schema rewritten so that objects cannot repeat a key, if their patterns match few names.

    GrammarError, with a pointer, where properties must be counted and the compiler cannot."""
    shared = _Shared(schema.get("$defs", {}) if isinstance(schema, dict) else {})
    result = _order_keys(schema, "#", shared)
    return {**result, "$defs": {**result.get("$defs", {}), **shared}} if shared else result


def _order_keys(schema: Any, at: str, shared: _Shared, part: bool = False) -> Any:
    """part: the schema is part of an allOf. The schema with the allOf orders its keys."""
    if not isinstance(schema, dict):
        return schema
    new = dict(schema)
    for pointer, inner in list(children(new)):
        put(new, pointer, _order_keys(inner, f"{at}/{pointer}", shared, pointer.startswith("allOf/")))
    return new if part else _of_keys(new, at, shared)


def _of_keys(schema: dict[str, Any], at: str, shared: _Shared) -> dict[str, Any]:
    parts = parts_of(schema)
    counted = any(k in p for k in COUNTS for p in parts)
    if not counted and not any(p.get("patternProperties") for p in parts):
        return schema
    try:
        values = _values(parts)
    except _UnknownError:
        values = None
    if values is not None:
        return _list_properties(schema, parts, values, at, shared)
    patterns = any(p.get("patternProperties") for p in parts)
    if patterns and any(p.get("minProperties", 0) > 1 for p in parts):
        why = "is supported only where all properties are named, and other keys are few"
        raise GrammarError(why, _pointer(schema, at, "minProperties"))
    if "allOf" in schema:
        schema = {**schema, "allOf": [_of_keys(p, at, shared) if isinstance(p, dict) else p for p in schema["allOf"]]}
    return schema


def _values(parts: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Key -> schema of its value, for all possible keys in order. None: unlimited. _UnknownError."""
    names = possible_keys(parts)
    if names is None:
        return None
    order = dict.fromkeys(n for p in parts for n in _property_names(p))
    values = {n: [s for p in parts for s in _value(p, n)] for n in order if n in names}
    return {n: _both(schemas) for n, schemas in values.items() if not any(map(_is_false, schemas))}


def _is_false(schema: Any) -> bool:
    return schema is False or (isinstance(schema, dict) and any(map(_is_false, schema.get("allOf", ()))))


def _property_names(part: dict[str, Any]) -> Iterator[str]:
    yield from part.get("properties", ())
    for pattern in part.get("patternProperties") or ():
        yield from regexes.texts(pattern) or ()


def _value(part: dict[str, Any], name: str) -> list[Any]:
    """The schemas that the key's value must satisfy."""
    found = [part["properties"][name]] if name in part.get("properties", ()) else []
    found += [s for pattern, s in (part.get("patternProperties") or {}).items() if _matches(pattern, name)]
    return found or [part.get("additionalProperties", True)]


def _matches(pattern: str, name: str) -> bool:
    """Does the pattern match the name? _UnknownError if it is not supported."""
    listed = regexes.texts(pattern)
    if listed is not None:
        return name in listed
    try:
        if regexes.parse(pattern) is not None:
            return re.search(pattern, name) is not None
    except re.error:
        pass
    raise _UnknownError


def _both(schemas: list[Any]) -> Any:
    constraints = [s for s in schemas if s is not True and s != {}]
    return True if not constraints else constraints[0] if len(constraints) == 1 else {"allOf": constraints}


def _list_properties(
    schema: dict[str, Any], parts: Sequence[dict[str, Any]], values: dict[str, Any], at: str, shared: _Shared
) -> dict[str, Any]:
    """The schema with the keys of all its parts as properties. values: key -> schema of its value."""
    required = list(dict.fromkeys(n for p in parts for n in p.get("required", ())))
    rest = _without_keys(schema)
    if not any(k in p for k in COUNTS for p in parts):
        return {**rest, "properties": values, "required": required, "additionalProperties": False}
    free = [n for n in values if n not in required]
    least = max(max(p.get("minProperties", 0) for p in parts) - len(required), 0)
    most = min(min(p.get("maxProperties", len(values)) for p in parts) - len(required), len(free))
    if _number_of_sets(len(free), least, most) > MOST_SETS:
        key = next(k for k in COUNTS for p in parts if k in p)
        raise GrammarError(
            f"more than {MOST_SETS} sets of keys are possible; the limit in embedded schemas is {MOST_SETS}",
            _pointer(schema, at, key),
        )
    named = {n: shared.reference(value) for n, value in values.items()}
    forms: list[Any] = [
        {
            "type": "object",
            "properties": {n: s for n, s in named.items() if n in required or n in first or n in others},
            "required": [*required, *first],
            "additionalProperties": False,
        }
        for first, others in _sets(free, least, most)
    ]
    if not any(p.get("type") == "object" for p in parts):
        forms.append({"type": [t for t in TYPES if t != "object"]})
    return {**rest, "allOf": [*rest.get("allOf", ()), {"anyOf": forms} if forms else False]}


def _sets(names: Sequence[str], least: int, most: int) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Pairs (required names, optional names) that together cover all sets of `least` to `most` names. The first `least` names
    of a set are required, and later ones optional."""
    if most < least:
        return
    for chosen in combinations(range(len(names)), least):
        later = range(chosen[-1] + 1 if chosen else 0, len(names))
        first = tuple(names[i] for i in chosen)
        for others in combinations(later, min(most - least, len(later))):
            yield first, tuple(names[i] for i in others)


def _number_of_sets(names: int, least: int, most: int) -> int:
    if most < least:
        return 0
    if not least:
        return comb(names, most)
    return sum(
        comb(last, least - 1) * comb(names - last - 1, min(most - least, names - last - 1)) for last in range(least - 1, names)
    )


def _without_keys(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema and its parts without keywords about keys."""
    rest = {k: v for k, v in schema.items() if k not in OF_KEYS}
    if "allOf" in rest:
        inner = [_without_keys(p) if isinstance(p, dict) else p for p in rest.pop("allOf")]
        inner = [p for p in inner if p != {}]
        return {**rest, "allOf": inner} if inner else rest
    return rest


def _pointer(schema: dict[str, Any], at: str, key: str) -> str:
    """Pointer to a keyword of the schema or of its parts."""
    if key in schema:
        return f"{at}/{key}"
    inner = enumerate(schema.get("allOf", ()))
    return next((f"{at}/allOf/{i}/{key}" for i, p in inner if isinstance(p, dict) and key in p), at)
