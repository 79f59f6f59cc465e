"""Rewriters of keywords that llguidance lacks: functions of (schema, seen), called after the nested schemas were rewritten.
Each returns an equivalent schema or a narrower one.

The opposite of a narrower schema is a wider one. Opposites are therefore built from the original schema
(`RewriteContext.raw`), and prepared in turn. contains: the matching items are the first ones, or the first after prefixItems.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from thalweg.grammar import regexes
from thalweg.grammar.schema.keys import count_keys
from thalweg.grammar.schema.opposite import TYPES, disjoint, enum_values, opposite, same
from thalweg.grammar.schema.readers import bounds, dates
from thalweg.grammar.schema.unevaluated import rewrite_unevaluated
from thalweg.grammar.schema.walk import NonEvaluatingSchema
from thalweg.grammar.source import GrammarError


@dataclass(frozen=True, slots=True)
class RewriteContext:
    """Context of a rewriting step."""

    raw: dict[str, Any]
    """The schema before rewriting, with its nested schemas."""
    look: Callable[[str], Any]
    """Reference -> its target, before rewriting. KeyError."""
    prepared: Callable[[Any], Any]
    """Rewrites a schema that a step has built."""
    found: Callable[[str], Any]
    """Reference -> its target, rewritten. GrammarError if it leads to itself."""
    at: str
    """Pointer to the schema."""

    def opposite(self, schema: Any) -> Any:
        """The opposite of an original schema, rewritten, as a `NonEvaluatingSchema`. None: not expressible."""
        other = opposite(schema, self.look)
        return other if other is None else _silent(self.prepared(other))


Step = Callable[[dict[str, Any], RewriteContext], dict[str, Any]]
MOST_COUNTED = 16
"""Most items that contains may count."""
MOST_LISTED = 8
"""Most distinct values for uniqueItems, as all their lists are enumerated."""
OF_NAMES = frozenset({"pattern", "enum", "const", "minLength", "maxLength", "title", "description"})
"""Supported keywords of propertyNames."""
MOST_BRANCHES = 8
"""Most branches of oneOf where each must exclude the others."""


def _with(schema: dict[str, Any], *more: Any) -> dict[str, Any]:
    """The schema in an allOf with `more`."""
    return {**schema, "allOf": [*schema.get("allOf", ()), *more]}


def _silent(schema: Any) -> Any:
    return NonEvaluatingSchema(schema) if isinstance(schema, dict) else schema


def _without(schema: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in schema.items() if k not in keys}


def names(schema: dict[str, Any], seen: RewriteContext) -> dict[str, Any]:
    """Rewrites propertyNames as patterns, or as a list of names."""
    if "propertyNames" not in schema:
        return schema
    rest, requested = _without(schema, "propertyNames"), schema["propertyNames"]
    if isinstance(requested, dict) and set(requested) == {"$ref"}:
        requested = seen.found(requested["$ref"])
    if requested is True or requested == {}:
        return rest
    if requested is False:
        return _with(rest, {"maxProperties": 0})
    if not isinstance(requested, dict):
        raise GrammarError("is not supported here", f"{seen.at}/propertyNames")
    for key, value in requested.items():
        if key not in OF_NAMES and not (key == "type" and value == "string"):
            raise GrammarError(f"{key} is not supported for names", f"{seen.at}/propertyNames/{key}")
    more = _of_names(requested, f"{seen.at}/propertyNames")
    return _with(rest, *map(_silent, more)) if more else rest


def _of_names(requested: dict[str, Any], at: str) -> list[dict[str, Any]]:
    """Schemas of objects with names that satisfy `asked`: a list of names, a pattern, or bounds of their length."""
    low, high, pattern = requested.get("minLength", 0), requested.get("maxLength"), requested.get("pattern")
    lists = (
        [requested["const"]] if "const" in requested else [],
        requested.get("enum") or [],
        regexes.texts(pattern) if pattern else None,
    )
    found = [
        names for key, names in zip(("const", "enum", "pattern"), lists, strict=True) if key in requested and names is not None
    ]
    out = []
    if found:
        names = [n for n in found[0] if isinstance(n, str) and _fits(n, low, high) and all(n in names for names in found)]
        out.append(_only_named(list(dict.fromkeys(names))))
    elif low or high is not None:
        if pattern is not None:
            key = "minLength" if high is None else "maxLength"
            raise GrammarError(f"{key} is not supported with a pattern of names; put the length in the pattern", f"{at}/{key}")
        out.append(_only_matched(f"^(?s:.){{{low},{'' if high is None else high}}}$"))
    if pattern is not None and (lists[2] is None or not found):
        out.append(_only_matched(pattern))
    return out


def _fits(name: str, low: int, high: int | None) -> bool:
    return low <= len(name) <= (len(name) if high is None else high)


def _only_named(names: list[str]) -> dict[str, Any]:
    return {"properties": dict.fromkeys(names, True), "additionalProperties": False}


def _only_matched(pattern: str) -> dict[str, Any]:
    return {"patternProperties": {pattern: True}, "additionalProperties": False}


def dependents(schema: dict[str, Any], seen: RewriteContext) -> dict[str, Any]:
    """Rewrites dependentRequired and dependentSchemas: the property is absent, or the rest holds."""
    more: list[Any] = []
    for name, needs in (schema.get("dependentRequired") or {}).items():
        if needs:
            more.append(NonEvaluatingSchema(anyOf=[{"properties": {name: False}}, {"required": [name, *needs]}]))
    for name, then in (schema.get("dependentSchemas") or {}).items():
        more.append(
            {"anyOf": [NonEvaluatingSchema(properties={name: False}), {"allOf": [NonEvaluatingSchema(required=[name]), then]}]}
        )
    rest = _without(schema, "dependentRequired", "dependentSchemas")
    return _with(rest, *more) if more else rest


def contains(schema: dict[str, Any], seen: RewriteContext) -> dict[str, Any]:
    """Rewrites contains, minContains and maxContains."""
    rest = _without(schema, "contains", "minContains", "maxContains")
    if "contains" not in schema:
        return rest
    wanted, least, most = schema["contains"], schema.get("minContains", 1), schema.get("maxContains")
    if not isinstance(least, int) or least > MOST_COUNTED or (most is not None and not isinstance(most, int)):
        raise GrammarError(f"counting more than {MOST_COUNTED} items is not supported", f"{seen.at}/minContains")
    prefix = len(schema.get("prefixItems", ()))
    if most is None:
        if not least:
            return rest
        places = sorted({0, prefix})
        return _with(
            rest,
            NonEvaluatingSchema(anyOf=[{"prefixItems": [True] * p + [wanted] * least, "minItems": p + least} for p in places]),
        )
    other = seen.opposite(seen.raw["contains"])
    counts = range(least, min(most, least + MOST_COUNTED) + 1)
    if not counts:
        return _with(rest, False)
    others = False if other is None else other
    forms = [{"prefixItems": [wanted] * n, "minItems": n, "items": others} if n else {"items": others} for n in counts]
    return _with(rest, NonEvaluatingSchema(anyOf=forms))


def unique(schema: dict[str, Any], seen: RewriteContext) -> dict[str, Any]:
    """Rewrites uniqueItems for items with few listed values: as an enum of all lists, with values in their listed order."""
    items = schema.get("items")
    values = enum_values(items) if isinstance(items, dict) else None
    if schema.get("uniqueItems") is not True or values is None or "prefixItems" in schema:
        return schema
    apart = [v for i, v in enumerate(values) if not any(same(v, w) for w in values[:i])]
    if len(apart) > MOST_LISTED:
        return schema
    least, most = schema.get("minItems", 0), min(schema.get("maxItems", len(apart)), len(apart))
    lists = [list(c) for n in range(least, most + 1) for c in combinations(apart, n)]
    rest = _without(schema, "uniqueItems")
    others = {"type": [t for t in TYPES if t != "array"]}
    return _with(rest, NonEvaluatingSchema(anyOf=[others, {"enum": lists}] if lists else [others]))


def negation(schema: dict[str, Any], seen: RewriteContext) -> dict[str, Any]:
    """Rewrites not."""
    if "not" not in schema:
        return schema
    other = seen.opposite(seen.raw["not"])
    if other is None:
        raise GrammarError("the opposite of this schema is not supported", f"{seen.at}/not")
    rest = _without(schema, "not")
    return rest if other is True or other == {} else _with(rest, other)


def condition(schema: dict[str, Any], seen: RewriteContext) -> dict[str, Any]:
    """Rewrites if, then and else: `if` and `then` hold, or the opposite of `if` and `else`."""
    rest = _without(schema, "if", "then", "else")
    if "if" not in schema or not ("then" in schema or "else" in schema):
        return rest
    requested, then, other = schema["if"], schema.get("then", True), schema.get("else", True)
    against = seen.opposite(seen.raw["if"])
    if against is None:
        raise GrammarError("the opposite of this schema is not supported", f"{seen.at}/if")
    branches = [{"allOf": [requested, then]}, {"allOf": [against, other]}]
    return _with(rest, {"anyOf": [b for b in branches if False not in b["allOf"]] or [False]})


def one_of(schema: dict[str, Any], seen: RewriteContext) -> dict[str, Any]:
    """Rewrites oneOf as anyOf if no two branches can hold. Otherwise each branch excludes the others by their opposites."""
    if "oneOf" not in schema:
        return schema
    rest = _without(schema, "oneOf")
    pairs = [(b, raw) for b, raw in zip(schema["oneOf"], seen.raw["oneOf"], strict=True) if b is not False]
    branches = [b for b, _ in pairs]
    if not all(disjoint(a, b, seen.look) for i, (_, a) in enumerate(pairs) for _, b in pairs[:i]):
        opposites = [seen.opposite(raw) for _, raw in pairs] if len(pairs) <= MOST_BRANCHES else [None]
        if any(o is None for o in opposites):
            raise GrammarError("several of these may hold at once, which cannot be excluded", f"{seen.at}/oneOf")
        branches = [
            {"allOf": [b, *(o for j, o in enumerate(opposites) if j != i)]}
            for i, b in enumerate(branches)
            if not any(o is False for j, o in enumerate(opposites) if j != i)
        ]
    if not branches:
        raise GrammarError("no branch can hold without another", f"{seen.at}/oneOf")
    return _with(rest, {"anyOf": branches}) if "anyOf" in rest else {**rest, "anyOf": branches}


def evaluation(schema: dict[str, Any], seen: RewriteContext) -> dict[str, Any]:
    """Rewrites unevaluatedProperties and unevaluatedItems."""
    return rewrite_unevaluated(schema, seen.found, seen.at)


def read_back(schema: dict[str, Any], seen: RewriteContext) -> dict[str, Any]:
    """Excludes numbers and dates that readers round to forbidden values or reject."""
    patterns = [NonEvaluatingSchema(pattern=p) for p in dates(schema)]
    rest = bounds(schema)
    return _with(rest, *patterns) if patterns else rest


def counts(schema: dict[str, Any], seen: RewriteContext) -> dict[str, Any]:
    """Rewrites minProperties and maxProperties."""
    return count_keys(schema)


STEPS: tuple[Step, ...] = (read_back, names, dependents, contains, unique, negation, condition, one_of, evaluation, counts)
"""Steps in their order. `evaluation` comes late, as it requires that the only choices left are allOf, anyOf and references."""
