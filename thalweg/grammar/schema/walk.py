"""Finds schemas within schemas, and resolves JSON pointers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords with a map of name -> schema."""
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
ONES = (
    "additionalProperties", "items", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties", "additionalItems", "contentSchema",
)  # fmt: skip


class NonEvaluatingSchema(dict[str, Any]):
    """A schema built by rewriting. unevaluatedProperties and unevaluatedItems ignore it: it evaluates nothing."""


def escape_pointer(name: str) -> str:
    """A name as part of a pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def children(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(pointer from this schema, schema) of each directly nested schema."""
    for key, value in schema.items():
        if key in MAPS and isinstance(value, dict):
            yield from ((f"{key}/{escape_pointer(name)}", inner) for name, inner in value.items())
        elif key in LISTS and isinstance(value, list):
            yield from ((f"{key}/{i}", inner) for i, inner in enumerate(value))
        elif key in ONES and isinstance(value, dict | bool):
            yield key, value
        elif key == "items" and isinstance(value, list):
            yield from ((f"items/{i}", inner) for i, inner in enumerate(value))
        elif key == "dependencies" and isinstance(value, dict):
            yield from ((f"{key}/{escape_pointer(n)}", inner) for n, inner in value.items() if not isinstance(inner, list))


def put(schema: dict[str, Any], pointer: str, value: Any) -> None:
    """Replace a child at a pointer of `children`. Containers on the way are copied, so the caller's stay unchanged."""
    key, inside, rest = pointer.partition("/")
    if not inside:
        schema[key] = value
    elif isinstance(schema[key], list):
        schema[key] = [value if str(i) == rest else v for i, v in enumerate(schema[key])]
    else:
        schema[key] = {k: value if escape_pointer(k) == rest else v for k, v in schema[key].items()}


def references(schema: Any) -> set[str]:
    """The references of a schema and its nested schemas."""
    out, todo = set[str](), [schema]
    while todo:
        at = todo.pop()
        if isinstance(at, dict):
            if isinstance(at.get("$ref"), str):
                out.add(at["$ref"])
            todo += [inner for _, inner in children(at)]
    return out


def find(root: Any, ref: str) -> Any:
    """The target of a reference within the document: "#", "#/$defs/a", or "#name" of an anchor. KeyError if there is none."""
    if not ref.startswith("#"):
        raise KeyError(ref)
    if ref != "#" and not ref.startswith("#/"):
        return _find_anchor(root, ref[1:])
    from urllib.parse import unquote

    at = root
    for part in ref[2:].split("/") if len(ref) > 1 else ():
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(at, list):
            at = at[int(name)] if name.isdecimal() and int(name) < len(at) else None
        else:
            at = at.get(name) if isinstance(at, dict) else None
        if at is None:
            raise KeyError(ref)
    return at


def known_pointer(root: Any, pointer: str) -> str:
    """As much of a pointer as names something in the document. Rewriting makes schemas that the document has not."""
    parts = pointer.split("/")
    for count in range(len(parts), 1, -1):
        with suppress(KeyError):
            find(root, "/".join(parts[:count]))
            return "/".join(parts[:count])
    return parts[0]


def _find_anchor(root: Any, name: str) -> Any:
    todo = [root]
    while todo:
        schema = todo.pop()
        if isinstance(schema, dict):
            if schema.get("$anchor") == name:
                return schema
            todo += [inner for _, inner in children(schema)]
    raise KeyError(name)
