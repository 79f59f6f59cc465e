"""Negates schemas. The negation may be narrower than exact: it accepts only values that fail the schema, maybe not all. A
schema rewritten with it thus never accepts a value that `not` forbids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

Look = Callable[[str], Any]
TYPES = ("null", "boolean", "object", "array", "number", "string")
MOST_DEPTH = 8
MOST_VALUES = 32
_BOUNDS = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
_SIZES = {"Length": "string", "Items": "array", "Properties": "object"}


def opposite(schema: Any, look: Look, depth: int = 0) -> Any:
    """A schema that accepts only values that `schema` rejects. None: unknown. False: `schema` rejects nothing."""
    if isinstance(schema, bool):
        return not schema
    if not isinstance(schema, dict) or depth > MOST_DEPTH:
        return None
    ways: list[Any] = []
    whole = True
    for key, value in schema.items():
        way = _of(key, value, schema, look, depth)
        whole &= way is not _UNKNOWN
        if way is not _UNKNOWN and way is not False:
            ways += way["anyOf"] if isinstance(way, dict) and set(way) == {"anyOf"} else [way]
    if not ways:
        return False if whole else None
    return ways[0] if len(ways) == 1 else {"anyOf": ways}


_UNKNOWN = object()


def _of(key: str, value: Any, schema: dict[str, Any], look: Look, depth: int) -> Any:
    """The negation of one keyword. False: no value fails it. _UNKNOWN: not supported."""
    if key == "type":
        return _types(_others(value))
    if key in ("const", "enum"):
        return _values(value if key == "enum" and isinstance(value, list) else [value])
    if key in _BOUNDS and _is_number(value):
        return {"type": "number", _BOUNDS[key]: value}
    size = next((s for s in _SIZES if key in (f"min{s}", f"max{s}")), None)
    if size is not None and isinstance(value, int):
        if key.startswith("max"):
            return {"type": _SIZES[size], f"min{size}": value + 1}
        return {"type": _SIZES[size], f"max{size}": value - 1} if value > 0 else False
    if key == "required" and isinstance(value, list):
        return _any({"type": "object", "properties": {name: False}} for name in value)
    if key == "properties" and isinstance(value, dict):
        found = [(n, opposite(s, look, depth + 1)) for n, s in value.items()]
        ways = [{"type": "object", "properties": {n: o}, "required": [n]} for n, o in found if o is not None and o is not False]
        return _any(ways) if ways or all(o is False for _, o in found) else _UNKNOWN
    if key == "items":
        other = opposite(value, look, depth + 1)
        at = len(schema.get("prefixItems", ()))
        if other is None or other is False:
            return _UNKNOWN if other is None else False
        return {"type": "array", "prefixItems": [True] * at + [other], "minItems": at + 1}
    if key == "additionalProperties" and value is False and not schema.get("patternProperties"):
        return _UNKNOWN
    return _negate_applicator(key, value, look, depth)


def _negate_applicator(key: str, value: Any, look: Look, depth: int) -> Any:
    if key in ("allOf", "anyOf", "oneOf") and isinstance(value, list):
        found = [opposite(s, look, depth + 1) for s in value]
        if key == "allOf":
            known = [o for o in found if o is not None and o is not False]
            return _any(known) if known or None not in found else _UNKNOWN
        if None in found:
            return _UNKNOWN
        return False if False in found else {"allOf": found}
    if key == "not":
        return value
    if key == "$ref" and isinstance(value, str):
        try:
            other = opposite(look(value), look, depth + 1)
        except KeyError:
            return _UNKNOWN
        return _UNKNOWN if other is None else other
    return False if key in _SILENT else _UNKNOWN


_SILENT = frozenset(
    {"title", "description", "default", "examples", "$comment", "$id", "$schema", "$anchor", "$defs", "definitions",
     "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType"}
)  # fmt: skip
"""Keywords that reject no value."""


def _any(ways: Iterable[Any]) -> Any:
    found = list(ways)
    return False if not found else found[0] if len(found) == 1 else {"anyOf": found}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _others(types: Any) -> list[str]:
    """All other types. Numbers that are not integers have no type name, so they are omitted."""
    here = set(types) if isinstance(types, list) else {types}
    return [t for t in TYPES if t not in here and not (t == "number" and "integer" in here)]


def _types(types: list[str]) -> Any:
    return {"type": types if len(types) > 1 else types[0]} if types else False


def _values(values: list[Any]) -> Any:
    """Schema of other values: all of the other types, and of the values' types as far as expressible."""
    if len(values) > MOST_VALUES:
        return _UNKNOWN
    kinds = {kind_of(v) for v in values}
    ways: list[Any] = [w for w in (_types([t for t in TYPES if t not in kinds]),) if w]
    texts = [v for v in values if isinstance(v, str)]
    if texts:
        ways.append({"type": "string", "pattern": f"^(?:{unlike(texts)})$"})
    numbers = sorted({v for v in values if _is_number(v)})
    if numbers:
        ways += [{"type": "number", "exclusiveMaximum": numbers[0]}, {"type": "number", "exclusiveMinimum": numbers[-1]}]
        ways += [{"type": "number", "exclusiveMinimum": a, "exclusiveMaximum": b} for a, b in pairwise(numbers)]
    if "boolean" in kinds:
        ways += [{"const": b} for b in (True, False) if not any(v is b for v in values)]
    ways += [{"type": "array", "minItems": 1}] if [] in values and kinds == {"array"} and len(values) == 1 else []
    ways += [{"type": "object", "minProperties": 1}] if {} in values and "object" in kinds and len(values) == 1 else []
    return _any(ways)


def kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if _is_number(value):
        return "number"
    if isinstance(value, dict):
        return "object"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "null"


def unlike(texts: list[str]) -> str:
    """A regex for every text except these, built from the trie of their letters."""
    ends = "" in texts
    firsts = sorted({t[0] for t in texts if t})
    ways = [] if ends else [""]
    if firsts:
        letters = "".join(f"\\x{{{ord(c):x}}}" for c in firsts)
        ways += [f"(?s:[^{letters}].*)"]
        ways += [f"{re.escape(c)}(?:{unlike([t[1:] for t in texts if t[:1] == c])})" for c in firsts]
    else:
        ways += ["(?s:.+)"]
    return "|".join(ways)


def disjoint(a: Any, b: Any, look: Look, depth: int = 0) -> bool:
    """Is it certain that no value satisfies both schemas?"""
    if a is False or b is False:
        return True
    if not isinstance(a, dict) or not isinstance(b, dict) or depth > MOST_DEPTH:
        return False
    for one, other in ((a, b), (b, a)):
        if isinstance(one.get("$ref"), str):
            try:
                if disjoint(look(one["$ref"]), other, look, depth + 1):
                    return True
            except KeyError:
                return False
        if any(disjoint(part, other, look, depth + 1) for part in one.get("allOf", ())):
            return True
        if "anyOf" in one and all(disjoint(part, other, look, depth + 1) for part in one["anyOf"]):
            return True
    if not kinds(a) & kinds(b):
        return True
    first, second = enum_values(a), enum_values(b)
    if first is not None and second is not None and not any(same(v, w) for v in first for w in second):
        return True
    if kinds(a) & kinds(b) != {"object"}:
        return False
    mine, others = a.get("properties", {}), b.get("properties", {})
    both = set(a.get("required", ())) | set(b.get("required", ()))
    return any(disjoint(mine[n], others[n], look, depth + 1) for n in both if n in mine and n in others)


def kinds(schema: dict[str, Any]) -> set[str]:
    """Types of the values that may satisfy the schema."""
    values = enum_values(schema)
    kind = schema.get("type")
    here = set(TYPES)
    if isinstance(kind, str | list):
        named = {kind} if isinstance(kind, str) else set(kind)
        here = {"number" if t == "integer" else t for t in named}
    return here & {kind_of(v) for v in values} if values is not None else here


def enum_values(schema: dict[str, Any]) -> list[Any] | None:
    """The values in the schema's const or enum. None: it has neither."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def same(a: Any, b: Any) -> bool:
    """Are the values equal in JSON Schema? Any two lists or objects count as equal, which is safe."""
    return kind_of(a) == kind_of(b) and (kind_of(a) in ("array", "object") or a == b)
