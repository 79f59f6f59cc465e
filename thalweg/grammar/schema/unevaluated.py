"""Rewrites unevaluatedProperties and unevaluatedItems as additionalProperties and items of each way that a schema can hold.

The other keywords are rewritten before: the only choices left are allOf, anyOf and references. A way consists of the schema's
keywords, those of all referenced schemas, and one branch of each choice. A way lists everything that it evaluates. Where
several branches hold, together they evaluate more than each: such instances are accepted only if a single branch evaluates
enough. The result is thus narrower, never wider.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.grammar.schema.walk import NonEvaluatingSchema
from thalweg.grammar.source import GrammarError

Look = Callable[[str], Any]
MOST_WAYS = 64
MOST_DEPTH = 12
PROPERTIES, ITEMS = "unevaluatedProperties", "unevaluatedItems"
_CHOICES = ("allOf", "anyOf", "$ref")
Way = list[Any]


def rewrite_unevaluated(schema: dict[str, Any], look: Look, at: str) -> dict[str, Any]:
    """The schema without either keyword. GrammarError if its ways are too many or unknown."""
    requested = [k for k in (PROPERTIES, ITEMS) if k in schema]
    rest = {k: v for k, v in schema.items() if k not in requested}
    requested = [k for k in requested if schema[k] is not True]
    if not requested:
        return rest
    kept = {k: v for k, v in rest.items() if (k.startswith("$") and k != "$ref") or k == "definitions"}
    ways = _ways({k: v for k, v in rest.items() if k not in kept}, look, f"{at}/{requested[0]}", 0)
    forms = []
    for way in ways:
        more = [_close_branch(k, way, schema[k]) for k in requested]
        forms.append({"allOf": [*way, *(m for m in more if m is not None)]})
    return {**kept, "anyOf": forms} if len(forms) > 1 else {**kept, **forms[0]}


def _close_branch(key: str, way: Way, value: Any) -> dict[str, Any] | None:
    """The schema that closes a way for this keyword. None: everything is evaluated."""
    way = [s for s in way if isinstance(s, dict) and not isinstance(s, NonEvaluatingSchema)]
    if key == PROPERTIES:
        if any("additionalProperties" in s or PROPERTIES in s for s in way):
            return None
        named = {n: True for s in way for n in s.get("properties", ())}
        matched = {p: True for s in way for p in s.get("patternProperties", ())}
        result: dict[str, Any] = {"properties": named, "additionalProperties": value}
        return {**result, "patternProperties": matched} if matched else result
    if any("items" in s or ITEMS in s for s in way):
        return None
    first = max((len(s.get("prefixItems", ())) for s in way), default=0)
    return {"prefixItems": [True] * first, "items": value} if first else {"items": value}


def _ways(schema: Any, look: Look, at: str, depth: int) -> list[Way]:
    """Lists of schemas without choices. All schemas of one list must hold."""
    if not isinstance(schema, dict):
        return [] if schema is False else [[]]
    if isinstance(schema, NonEvaluatingSchema):
        return [[schema]]
    if depth > MOST_DEPTH:
        raise GrammarError("references are nested too deep to find all evaluated parts", at)
    if "$dynamicRef" in schema:
        raise GrammarError("a dynamic reference is not supported with unevaluatedProperties or unevaluatedItems", at)
    plain = {k: v for k, v in schema.items() if k not in _CHOICES}
    ways: list[Way] = [[plain]] if plain else [[]]
    for part in schema.get("allOf", ()):
        ways = _product(ways, _ways(part, look, at, depth + 1), at)
    if "$ref" in schema:
        ways = _product(ways, _ways(look(schema["$ref"]), look, at, depth + 1), at)
    if "anyOf" in schema:
        ways = _product(ways, [w for b in schema["anyOf"] for w in _ways(b, look, at, depth + 1)], at)
    return ways


def _product(a: list[Way], b: list[Way], at: str) -> list[Way]:
    if len(a) * len(b) > MOST_WAYS:
        raise GrammarError(f"it has more than {MOST_WAYS} combinations of branches", at)
    return [[*x, *y] for x in a for y in b]
