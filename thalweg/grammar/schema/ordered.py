"""Objects of few keys where nothing watches the text: inside tags, calls of tools, and grammars with schemas in them.

A pattern allows a key again and again, and only `thalweg.grammar.guard` keeps it from that. So here patterns of few names are
properties, each of which comes once, in an order. minProperties and maxProperties are the sets of keys that they allow.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

from thalweg.grammar import regexes
from thalweg.grammar.schema.keys import COUNTS, parts_of
from thalweg.grammar.schema.walk import Silent, children, put
from thalweg.grammar.source import GrammarError

MOST_SETS = 64
"""Of keys, for one object."""


def ordered(schema: Any, at: str = "#") -> Any:
    """A prepared schema whose objects have no key twice, if their patterns match few names.

    GrammarError, with a pointer, where properties must be counted and cannot be."""
    if not isinstance(schema, dict):
        return schema
    new = type(schema)(schema)
    for pointer, inner in list(children(new)):
        put(new, pointer, ordered(inner, f"{at}/{pointer}"))
    patterns = new.get("patternProperties") or {}
    counted = any(k in p for k in COUNTS for p in parts_of(new))
    if not patterns or not (counted or new.get("additionalProperties") is False):
        return new
    listed = {p: regexes.texts(p) for p in patterns}
    if new.get("additionalProperties") is not False or None in listed.values():
        return _counted(new, at) if counted else new
    named = new.get("properties", {})
    matched = {t: [s for p, s in patterns.items() if t in (listed[p] or ())] for found in listed.values() for t in found or ()}
    properties = {n: {"allOf": [s, *matched.pop(n)]} if n in matched else s for n, s in named.items()}
    optional = {n: s[0] if len(s) == 1 else {"allOf": s} for n, s in matched.items()}
    made = {k: v for k, v in new.items() if k not in ("patternProperties", *COUNTS)}
    made = type(schema)({**made, "properties": {**properties, **optional}})
    return _with_sets(made, new, list(optional), at) if any(k in new for k in COUNTS) else made


def _counted(schema: dict[str, Any], at: str) -> dict[str, Any]:
    """The schema, if a key that comes again cannot be counted twice."""
    if any(p.get("minProperties", 0) > 1 for p in parts_of(schema)):
        raise GrammarError("is served only where all properties are named, and other keys are few", f"{at}/minProperties")
    return schema


def _with_sets(made: dict[str, Any], schema: dict[str, Any], optional: list[str], at: str) -> dict[str, Any]:
    """One of the sets of optional keys that the counts of `schema` allow."""
    asked = [n for n in optional if n in schema.get("required", ())]
    free = [n for n in optional if n not in asked]
    fixed = len(made["properties"]) - len(free)
    least = max(schema.get("minProperties", 0) - fixed, 0)
    most = min(schema.get("maxProperties", fixed + len(free)) - fixed, len(free))
    if sum(comb(len(free), n) for n in range(least, most + 1)) > MOST_SETS:
        raise GrammarError(
            f"more than {MOST_SETS} sets of keys would do, and they are listed here", f"{at}/{_count_of(schema)}"
        )
    forms: list[Any] = [
        Silent(properties={n: False for n in free if n not in chosen}, required=[*asked, *chosen])
        for n in range(least, most + 1)
        for chosen in combinations(free, n)
    ]
    made["allOf"] = [*made.get("allOf", ()), Silent(anyOf=forms) if forms else False]
    return made


def _count_of(schema: dict[str, Any]) -> str:
    return next(k for k in COUNTS if k in schema)
