"""Schemas of strings as expressions of Lark, for formats that write strings as bare text.

An expression may be narrower than the schema, and is never wider. Formats are those that JSON grammars enforce.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from thalweg.grammar.schema.readers import DATE, SECONDS
from thalweg.turns.lark import ANY, Rules

IGNORED = frozenset(
    {"type", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$defs",
     "definitions", "$schema", "$id", "contentEncoding", "contentMediaType", "contentSchema", "properties", "required",
     "additionalProperties", "patternProperties", "propertyNames", "minProperties", "maxProperties", "items", "prefixItems",
     "minItems", "maxItems", "uniqueItems", "contains", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
     "multipleOf", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems",
     "minContains", "maxContains", "additionalItems"}
)  # fmt: skip
"""Keywords that do not constrain strings, or no value at all."""
_LABEL = r"[a-z0-9]([a-z0-9\-]{0,30}[a-z0-9])?"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_TIME = rf"{SECONDS}(\.[0-9]{{1,6}})?([Zz]|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])"
_HOURS = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]" + _TIME.removeprefix(SECONDS)
FORMATS = {
    "date": DATE,
    "time": _HOURS,
    "date-time": f"{DATE}T{_HOURS}",
    "duration": r"P([0-9]{1,4}D|[0-9]{1,4}W|([0-9]{1,4}D)?T[0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?)",
    "email": rf"[A-Za-z0-9]+([._+\-][A-Za-z0-9]+)*@({_LABEL}\.){{1,4}}[a-z]{{2,12}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,4}}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": r"[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri": rf"[a-z][a-z0-9+.\-]*://({_LABEL}\.){{0,4}}{_LABEL}(/[A-Za-z0-9._~\-]*)*",
}
DEEPEST = 16
CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r"}
"""\\d, \\w and \\s as JSON Schema defines them. Unicode's classes have more characters."""


class UnsupportedKeywordError(ValueError):
    """A keyword without an equivalent expression."""


def form_of(schema: Any, rules: Rules, depth: int = 0) -> str | None:
    """A terminal expression of the strings that a schema allows. None: all strings. UnsupportedKeywordError names the
    keyword."""
    if schema is True:
        return None
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        raise UnsupportedKeywordError(json.dumps(schema)[:60] if depth <= DEEPEST else "schemas nested in one another")
    parts = []
    for key in sorted(schema.keys() - IGNORED):
        part = _keyword(key, schema, rules, depth)
        if part is not None:
            parts.append(rules.fresh("PART", part))
    return " & ".join(parts) or None


def _keyword(key: str, schema: Mapping[str, Any], rules: Rules, depth: int) -> str | None:
    value = schema[key]
    match key:
        case "enum" | "const":
            texts = [v for v in (value if key == "enum" else [value]) if isinstance(v, str)]
            if not texts:
                raise UnsupportedKeywordError(f"{key} without a string")
            return " | ".join(json.dumps(t, ensure_ascii=False) if t else "/()/" for t in texts)
        case "maxLength" if "minLength" in schema:
            return None
        case "minLength" | "maxLength":
            least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
            return f"/(.|\\n){{{least},{'' if most is None else int(most)}}}/"
        case "pattern":
            return f"/{_pattern(value)}/"
        case "format":
            return f"/{_escape_slashes(FORMATS[value])}/" if value in FORMATS else None
        case "allOf":
            found = [f for s in value if (f := form_of(s, rules, depth + 1)) is not None]
            return " & ".join(rules.fresh("PART", f) for f in found) or None
        case "anyOf" | "oneOf":
            return _either(value, rules, depth, key == "oneOf")
        case "not":
            inner = form_of(value, rules, depth + 1) if _may_be_string(value) else ""
            if inner is None:
                raise UnsupportedKeywordError("not of every string")
            return f"{ANY} & ~{rules.fresh('PART', inner)}" if inner else None
    raise UnsupportedKeywordError(key)


def _either(branches: Any, rules: Rules, depth: int, one: bool) -> str | None:
    """Strings that one of the branches allows. one: exactly one."""
    found = [form_of(b, rules, depth + 1) for b in branches if _may_be_string(b)]
    if not found:
        raise UnsupportedKeywordError("anyOf without a string")
    names = [rules.fresh("PART", f or ANY) for f in found]
    if not one or len(names) == 1:
        return None if None in found else " | ".join(names)
    alone = [" & ".join([n, *(f"~{o}" for o in names if o != n)]) for n in names]
    return " | ".join(rules.fresh("PART", a) for a in alone)


def _may_be_string(schema: Any) -> bool:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return schema is not False and (kind is None or kind == "string" or (isinstance(kind, list) and "string" in kind))


def _pattern(text: Any) -> str:
    """A pattern of JSON Schema, which may match anywhere, as an expression of the whole text."""
    if not isinstance(text, str):
        raise UnsupportedKeywordError("pattern")
    branches = []
    for branch in _branches(text):
        begins = branch.startswith("^")
        ends = branch.endswith("$") and (len(branch) - len(branch[:-1].rstrip("\\"))) % 2 == 1
        body = branch[begins : len(branch) - ends]
        if _has_anchor(body):
            raise UnsupportedKeywordError("pattern with ^ or $ within")
        branches.append(f"{'' if begins else _ANYWHERE}({_escape_slashes(_narrow(body))}){'' if ends else _ANYWHERE}")
    return "|".join(branches)


_ANYWHERE = "(.|\\n)*"


def _places(text: str) -> list[tuple[str, bool, int]]:
    """Characters or escapes of a pattern: (text, within a class?, depth in groups)."""
    out, inside, depth, i = [], False, 0, 0
    while i < len(text):
        c = text[i : i + 2] if text[i] == "\\" else text[i]
        i += len(c)
        if inside:
            inside = c != "]"
            out.append((c, True, depth))
            continue
        inside = c == "["
        depth += (c == "(") - (c == ")")
        out.append((c, inside, depth))
    return out


def _branches(text: str) -> list[str]:
    found = [""]
    for c, inside, depth in _places(text):
        if c == "|" and not inside and not depth:
            found.append("")
        else:
            found[-1] += c
    return found


def _has_anchor(text: str) -> bool:
    return any(c in ("^", "$") and not inside for c, inside, _ in _places(text))


def _narrow(text: str) -> str:
    """The pattern with character classes as JSON Schema defines them."""
    out = []
    for c, inside, _ in _places(text):
        named = CLASSES.get(c[1]) if len(c) == 2 and c[0] == "\\" else None
        out.append(c if named is None else named if inside else f"[{named}]")
    return "".join(out)


def _escape_slashes(text: str) -> str:
    """The pattern with slashes and line breaks escaped, for use between slashes."""
    return "".join("\\/" if c == "/" else "\\n" if c == "\n" else c for c, _, _ in _places(text))
