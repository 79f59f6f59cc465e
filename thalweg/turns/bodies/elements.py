"""Values with objects and lists written in tags: <key>value</key>, and <item>value</item>."""

from __future__ import annotations

import json
from typing import Any

from thalweg.turns.bodies.body import WHITE
from thalweg.turns.bodies.schema import property_of, resolve_refs, types, value_of

DEEPEST = 64
"""Levels of nesting. Deeper values stay text."""
ITEM = "item"


def element_value(text: str, schema: Any, opened: str, closed: str, root: Any = None) -> str:
    """The JSON of a value. opened, closed: text before the key in opening and closing tags. root: the schema that references
    are resolved in."""
    tree = _parse(text, opened, closed)
    return _json(tree, schema, root, 0) if isinstance(tree, list) or schema is not None else value_of(tree, schema)


Tree = str | list[tuple[str, Any]]
"""Text, or the elements in it by name."""


def _parse(text: str, opened: str, closed: str) -> Tree:
    """One pass over the text, with a stack of open elements. Text without a well-formed tree stays text."""
    top: list[tuple[str, Any]] = []
    stack: list[tuple[str, list[tuple[str, Any]], int]] = [("", top, 0)]
    at = 0
    while (begin := text.find(opened[:-1], at)) >= 0:
        closing = text.startswith(closed, begin)
        if not closing and not text.startswith(opened, begin):
            at = begin + 1
            continue
        word = begin + len(closed if closing else opened)
        end = text.find(">", word)
        if end < 0:
            return text
        name = text[word:end]
        if not closing:
            if len(stack) > DEEPEST:
                return text
            stack.append((name, [], end + 1))
        elif len(stack) > 1 and stack[-1][0] == name:
            _, children, start = stack.pop()
            stack[-1][1].append((name, children or text[start:begin]))
        else:
            return text
        at = end + 1
    return top if top and len(stack) == 1 else text


def _json(tree: Tree, schema: Any, root: Any, depth: int) -> str:
    if isinstance(tree, str):
        allowed = types(schema)
        if schema is None:
            return value_of(tree, {})
        if tree.strip(WHITE) == "" and allowed and "string" not in allowed:
            return "[]" if "array" in allowed else "{}" if "object" in allowed else "null"
        return value_of(tree, schema)
    if all(name == ITEM for name, _ in tree) and "object" not in types(schema):
        items = resolve_refs(_alternative(schema, "array").get("items"), root)
        return "[" + ", ".join(_json(value, items, root, depth + 1) for _, value in tree) + "]"
    inner = _alternative(schema, "object")
    members = (
        json.dumps(k, ensure_ascii=False) + ": " + _json(v, property_of(inner, k, root), root, depth + 1) for k, v in tree
    )
    return "{" + ", ".join(members) + "}"


def _alternative(schema: Any, kind: str) -> Any:
    """The one alternative of the schema that allows this type, else the schema. {}: the schema is not an object."""
    if not isinstance(schema, dict):
        return {}
    for name in ("anyOf", "oneOf"):
        fit = [s for s in schema.get(name) or () if isinstance(s, dict) and kind in types(s)]
        if len(fit) == 1:
            return fit[0]
    return schema
