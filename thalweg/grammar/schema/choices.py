"""Rewrites anyOf and oneOf of values as one enum. The compiler makes a rule per branch, but one expression per enum."""

from __future__ import annotations

from collections import Counter
from typing import Any

from thalweg.grammar.schema.opposite import enum_values, kind_of

SILENT = frozenset({"title", "description", "$comment", "default", "examples", "deprecated"})


def as_enum(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with an anyOf or oneOf of listed values replaced by one enum. Other schemas are returned unchanged."""
    for key in ("anyOf", "oneOf"):
        if key in schema and "enum" not in schema and "const" not in schema:
            values = _values(schema[key], once=key == "oneOf")
            if values:
                return {**{k: v for k, v in schema.items() if k != key}, "enum": values}
    return schema


def _values(branches: list[Any], once: bool) -> list[Any] | None:
    """The values listed in the branches. once: without values listed in several branches. None: a branch has other keywords, or
    lists or objects as values."""
    found: list[dict[tuple[str, Any], Any]] = []
    for branch in branches:
        values = enum_values(branch) if isinstance(branch, dict) and _only_values(branch) else None
        if values is None or any(isinstance(v, list | dict) for v in values):
            return None
        found.append({(kind_of(v), v): v for v in values})
    times = Counter(key for values in found for key in values)
    return list({key: v for values in found for key, v in values.items() if not once or times[key] == 1}.values())


def _only_values(branch: dict[str, Any]) -> bool:
    """Does the branch have const or enum, and no other keyword that rejects values?"""
    rest = branch.keys() - SILENT
    if rest in ({"const"}, {"enum"}):
        return True
    return (
        rest in ({"const", "type"}, {"enum", "type"})
        and branch["type"] == "string"
        and all(isinstance(v, str) for v in enum_values(branch) or [None])
    )
