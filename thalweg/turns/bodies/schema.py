"""Does a tool's schema make an argument written as bare text a string, or JSON?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from thalweg.turns.bodies.literal import as_json

DEPTH = 8
LITERAL_WORDS = ("true", "false", "null", "True", "False", "None")
"""Values that could be mistaken for the beginning of a string without quotes."""
ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "$comment", "readOnly", "writeOnly"})
"""Keywords that do not constrain a value."""


def types(schema: Any, depth: int = 0) -> frozenset[str]:
    """JSON types that the schema allows, from type, enum, const, anyOf and oneOf. Empty: any."""
    if not isinstance(schema, Mapping) or depth > DEPTH:
        return frozenset()
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list) and all(isinstance(k, str) for k in kind):
        return frozenset(kind)
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return frozenset(map(_type, schema["enum"]))
    if "const" in schema:
        return frozenset({_type(schema["const"])})
    for name in ("anyOf", "oneOf"):
        parts = schema.get(name)
        if isinstance(parts, list) and parts:
            found = [types(p, depth + 1) for p in parts]
            return frozenset().union(*found) if all(found) else frozenset()
    return frozenset()


def resolve_refs(schema: Any, root: Any, depth: int = 0) -> Any:
    """The schema with local references resolved: its direct one, and those of its alternatives. Unresolvable ones stay."""
    if not isinstance(schema, Mapping) or depth > DEPTH:
        return schema
    ref = schema.get("$ref")
    if isinstance(ref, str):
        found, others = _at(root, ref), {k: v for k, v in schema.items() if k != "$ref" and k not in ANNOTATIONS}
        return resolve_refs(found, root, depth + 1) if found is not None and not others else schema
    result = {
        name: [resolve_refs(p, root, depth + 1) for p in schema[name]]
        for name in ("anyOf", "oneOf")
        if isinstance(schema.get(name), list)
    }
    return {**schema, **result} if result else schema


def _at(root: Any, ref: str) -> Any:
    """The value at a reference's JSON pointer. None: there is none."""
    if ref != "#" and not ref.startswith("#/"):
        return None
    found = root
    for word in ref[2:].split("/") if len(ref) > 1 else ():
        key = word.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return found


def property_of(parameters: Any, key: str, root: Any = None) -> Any:
    """The schema of an argument. None: the tool does not describe it. root: the schema to resolve references in. None:
    `parameters`."""
    root = parameters if root is None else root
    parameters = resolve_refs(parameters, root)
    if not isinstance(parameters, Mapping):
        return None
    properties = parameters.get("properties")
    found = properties.get(key) if isinstance(properties, Mapping) else None
    if found is None and isinstance(parameters.get("additionalProperties"), Mapping):
        found = parameters["additionalProperties"]
    return resolve_refs(found, root)


def must_be_string(schema: Any) -> bool:
    """Is the text itself the value, even where it parses as JSON? True for an argument without a schema."""
    return schema is None or types(schema) == {"string"}


def value_of(text: str, schema: Any) -> str:
    """The JSON of an argument's text."""
    if must_be_string(schema):
        return json.dumps(text, ensure_ascii=False)
    allowed = types(schema)
    result = _as_json(text.strip())
    if result is not None:
        kind = _type(json.loads(result))
        kinds = {kind, "number"} if kind == "integer" else {kind}
        if not allowed or kinds & allowed or ("string" not in allowed and kind != "string"):
            return result
    return json.dumps(text, ensure_ascii=False)


def begun_string(text: str, schema: Any) -> str:
    """The JSON of an argument cut off within its text, without the last quote. "": it may become another type."""
    allowed, begun = types(schema), text.rstrip()
    if must_be_string(schema):
        return json.dumps(text, ensure_ascii=False)[:-1]
    plain = bool(begun) and text[0].isalpha() and not any(w.startswith(begun) for w in LITERAL_WORDS)
    return json.dumps(begun, ensure_ascii=False)[:-1] if plain and (not allowed or "string" in allowed) else ""


def _as_json(text: str) -> str | None:
    try:
        json.loads(text, parse_constant=_refuse)
        return text
    except (ValueError, RecursionError):
        return as_json(text)


def _refuse(word: str) -> None:
    raise ValueError(word)


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", dict: "object", list: "array", type(None): "null"}
    return names.get(type(value), "null")
