"""The grammar of a call's arguments, for each way of writing them. RequestError names a keyword that a format does not
support."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from thalweg.errors import RequestError
from thalweg.turns.bind import terminals
from thalweg.turns.bodies.body import WHITE
from thalweg.turns.bodies.elements import ITEM
from thalweg.turns.bodies.schema import must_be_string, property_of, resolve_refs, types
from thalweg.turns.format import Calls, GemmaArgs, JsonCalls, PythonCalls, TaggedArgs
from thalweg.turns.lark import ANY, Rules, containing, literal
from thalweg.turns.strings import UnsupportedKeywordError, form_of

SCALARS = frozenset({"integer", "number", "boolean", "null"})
ALL = ("string", "integer", "number", "boolean", "null", "object", "array")
OBJECTS = frozenset(
    {"anyOf", "oneOf", "allOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
     "propertyNames", "patternProperties", "const", "enum", "$ref", "$dynamicRef"}
)  # fmt: skip
"""Keywords of objects that do not list members."""
ARRAYS = frozenset(
    {"anyOf", "oneOf", "allOf", "not", "if", "then", "else", "contains", "prefixItems", "uniqueItems", "const", "enum", "$ref",
     "$dynamicRef", "unevaluatedItems", "additionalItems"}
)  # fmt: skip
"""Keywords of arrays beyond their items and size."""
KEYS = frozenset({"patternProperties", "propertyNames", "dependentRequired"})
"""Keywords of objects that an object without keys satisfies."""
OPEN = frozenset({"items", "additionalProperties", "additionalItems", "unevaluatedItems"})
"""Keywords that ask for nothing where they are true."""
HELD = "parameters"
"""Name in `$defs` that references lead to once the schema is part of another."""
DEEPEST = 24


def rebase(schema: Any, root: Any) -> Any:
    """A part of `root` as a schema that compiles by itself: references go to a copy of `root` in its `$defs`."""
    if not _refers(schema):
        return schema
    result = {k: v for k, v in _move_refs(schema).items() if k not in ("$defs", "definitions")}
    return {**result, "$defs": {HELD: _move_refs(root)}}


def _refers(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        ref = schema.get("$ref")
        return (isinstance(ref, str) and ref.startswith("#")) or any(map(_refers, schema.values()))
    return isinstance(schema, list) and any(map(_refers, schema))


def _move_refs(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_move_refs(s) for s in schema]
    if not isinstance(schema, Mapping):
        return schema
    out = {k: v if k in ("const", "enum", "default", "examples") else _move_refs(v) for k, v in schema.items()}
    ref = schema.get("$ref")
    if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")):
        out["$ref"] = f"#/$defs/{HELD}{ref[1:]}"
    return out


def object_of(schema: Any) -> Any:
    """The schema of a call's arguments, which are an object."""
    if not isinstance(schema, Mapping) or not schema:
        return {"type": "object"}
    return schema if "type" in schema or "$ref" in schema else {"type": "object", **schema}


Member = tuple[bool, str, Any]
"""A member of an object: (required, name, schema). Schema None: any text."""


def members_of(schema: Any, root: Any) -> list[Member]:
    """The members that an object may have, in order. UnsupportedKeywordError where a list of members cannot express the
    schema."""
    schema = resolve_refs(schema, root)
    if not isinstance(schema, Mapping) or not types(schema) <= {"object"}:
        raise UnsupportedKeywordError("a schema of no object")
    if found := sorted(schema.keys() & OBJECTS):
        raise UnsupportedKeywordError(found[0])
    properties, required = schema.get("properties") or {}, list(schema.get("required") or ())
    keys = [*properties, *(k for k in required if k not in properties)]
    found = [(k in required, k, property_of(schema, k, root)) for k in keys]
    if any(needed and s is False for needed, _, s in found):
        raise UnsupportedKeywordError("a required property that nothing satisfies")
    found = [m for m in found if m[2] is not False]
    if schema.get("minProperties", 0) > len(required):
        raise UnsupportedKeywordError("minProperties")
    if schema.get("maxProperties", len(found)) < len(found):
        raise UnsupportedKeywordError("maxProperties")
    return found


def by_type(schema: Any, root: Any, depth: int = 0) -> list[tuple[str, Any]]:
    """The schema split into one for each JSON type that it allows: (type, schema). UnsupportedKeywordError where it cannot be
    split."""
    schema = resolve_refs(schema, root)
    if schema is True or schema is None or schema == {}:
        return [(t, {"type": t}) for t in ALL if t != "integer"]
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        raise UnsupportedKeywordError("a schema nested too deep" if depth > DEEPEST else "false")
    for name in ("anyOf", "oneOf"):
        parts = schema.get(name)
        if isinstance(parts, list) and "type" not in schema:
            if schema.keys() & (OBJECTS - {name}):
                raise UnsupportedKeywordError(name)
            found = [b for p in parts for b in by_type(p, root, depth + 1)]
            if name == "oneOf" and len({t for t, _ in found}) < len(found):
                raise UnsupportedKeywordError(name)
            return found
    allowed = types(schema)
    if not allowed and schema.keys() & (OBJECTS | ARRAYS):
        raise UnsupportedKeywordError(min(schema.keys() & (OBJECTS | ARRAYS)))
    return [(t, _only(schema, t)) for t in ALL if t in allowed or (not allowed and t != "integer")]


def _only(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    out = {**schema, "type": kind}
    if isinstance(schema.get("enum"), list):
        out["enum"] = [v for v in schema["enum"] if types({"const": v}) == {kind}]
    return out


class Arguments:
    """Makes rules for the calls of one row."""

    def __init__(
        self, rules: Rules, row: Calls, shown: Callable[[str], str], field: str, names: Mapping[str, tuple[str, str]]
    ) -> None:
        """field: the request's field that asks for the grammar. names: tool -> (field of its schema, its name in messages)."""
        self._rules, self._row, self._shown, self._field = rules, row, shown, field
        self._names = names
        self._root: Any = None
        self._marks = [t for t in map(shown, terminals(row)) if t and not t.isalnum()]

    def of(self, name: str, schema: Any) -> str:
        """The arguments of a tool. RequestError names the tool and the unsupported keyword."""
        self._root = schema
        try:
            return self._arguments(name, schema)
        except UnsupportedKeywordError as e:
            row = self._row.name
            field, called = self._names.get(name) or (self._field, f"{self._field}: parameters of {name!r}")
            raise RequestError(
                f"{called}: {e} is not supported in this model's call format {row}; "
                "simplify the schema, or send tool_choice 'auto' without strict",
                field,
            ) from None

    def _arguments(self, name: str, schema: Any) -> str:
        rules, body = self._rules, self._row.body
        match body:
            case PythonCalls():
                parts = [(need, f"({self._keyword_argument(k, s)})") for need, k, s in members_of(object_of(schema), schema)]
                return rules.join_members(parts, literal(", "))
            case GemmaArgs(quote):
                return self._gemma_members(object_of(schema), quote, 0)
            case TaggedArgs():
                result: Callable[[TaggedArgs, str, Any], str] = self._element if body.nested else self._tag
                parts = [(need, result(body, k, s)) for need, k, s in members_of(object_of(schema), schema)]
                return " ".join(f"({m})" if need else f"({m})?" for need, m in parts)
        return self.json(object_of(schema))

    def json(self, schema: Any) -> str:
        """A JSON value."""
        return self._rules.fresh("json", "%json " + json.dumps(rebase(schema, self._root)))

    def item(self, body: JsonCalls, name: str, schema: Any, before: str | None = None) -> str:
        """A call as an object with a member for its name. before: text before it, in one lexeme with all up to the
        arguments."""
        self._root = schema
        if before is not None:
            head = f'{{"{body.names[0]}": {json.dumps(name)}, "{body.args[0]}": '
            return f"{literal(before + head)} {self.json(object_of(schema))} {literal('}')}"
        members: dict[str, Any] = {name: object_of(schema)}
        if not body.keyed:
            members = {body.names[0]: {"const": name}, body.args[0]: object_of(schema)}
            if body.id_first:
                members = {body.ids[0]: {"type": "string"}, **members}
        return self.json({"type": "object", "properties": members, "required": list(members), "additionalProperties": False})

    def _keyword_argument(self, key: str, schema: Any) -> str:
        if not key or key != key.strip(WHITE) or any(c in key for c in "=),"):
            raise UnsupportedKeywordError(f"a property named {key[:40]!r}")
        if types(schema) == {"boolean"} and "enum" not in schema and not schema.keys() & OBJECTS:
            return f"{literal(key + '=')} ({literal('True')} | {literal('False')})"
        return f"{literal(key + '=')} {self.json({} if schema is None else schema)}"

    # Tags.

    def _key(self, key: str) -> str:
        """The key as tags spell it. UnsupportedKeywordError if a tag cannot contain it."""
        if not key or key != key.strip(WHITE) or "\n" in key or key.startswith("/") or any(m in key for m in self._marks):
            raise UnsupportedKeywordError(f"a property named {key[:40]!r}")
        return key

    def _tag(self, body: TaggedArgs, key: str, schema: Any) -> str:
        string = must_be_string(schema)
        closes = " | ".join(literal(t) for t in _fitting(body, string, types(schema)))
        line = "\n" if body.newline else ""
        between = "" if body.newline else body.between
        before = f"{literal(body.key_open + self._key(key))} ({closes}) {literal(between + body.value_open + line)}"
        end = line + body.value_close
        value = self._text(schema, end) if string else f"{self.json(schema)} {literal(end)}"
        return f"{before} {value} {literal(body.after)}"

    def _text(self, schema: Any, end: str, without: str = "") -> str:
        """A string as bare text, then `end`. without: part of `end` that the string must not contain."""
        form = form_of({} if schema is None else schema, self._rules)
        if without:
            form = f"{form or ANY} & ~{self._rules.fresh('HELD', containing(without))}"
        return self._rules.until(end, form, bool(without))

    # Tags within tags.

    def _element(self, body: TaggedArgs, key: str, schema: Any, depth: int = 0) -> str:
        """<key>value</key>, and nested values in the same form."""
        if depth > DEEPEST:
            raise UnsupportedKeywordError("a schema nested too deep")
        opened, closed = f"{body.key_open}{self._element_key(key)}>", f"{body.value_close}{key}>"
        if must_be_string(schema):
            return f"{literal(opened)} {self._text(schema, closed, self._tag_word(body))}"
        parts = by_type(schema, self._root)
        if not parts:
            raise UnsupportedKeywordError("false")
        kinds = frozenset(kind for kind, _ in parts)
        values = " | ".join(f"({self._inside(body, kind, part, kinds, depth)})" for kind, part in parts)
        return f"{literal(opened)} ({values}) {literal(closed)}"

    def _element_key(self, key: str) -> str:
        if ">" in key:
            raise UnsupportedKeywordError(f"a property named {key[:40]!r}")
        return self._key(key)

    def _tag_word(self, body: TaggedArgs) -> str:
        """The text that every tag contains."""
        opened = self._shown(body.key_open)
        if not self._shown(body.value_close).startswith(opened):
            raise UnsupportedKeywordError("a string in tags that close otherwise than they open")
        return opened

    def _inside(self, body: TaggedArgs, kind: str, schema: Any, kinds: frozenset[str], depth: int) -> str:
        """A value of one kind. kinds: every kind that the schema allows here. No text is an empty value of the plainest
        kind."""
        if kind == "object" and schema.get("properties"):
            found = members_of(schema, self._root)
            if kinds & {"string", "array"} and not any(need for need, _, _ in found):
                raise UnsupportedKeywordError("an object that may be empty, where other values may be,")
            parts = [(need, self._element(body, k, s, depth + 1)) for need, k, s in found]
            return " ".join(f"({m})" if need else f"({m})?" for need, m in parts)
        if kind == "array" and isinstance(schema.get("items"), Mapping):
            _check_array(schema)
            if "string" in kinds and not schema.get("minItems"):
                raise UnsupportedKeywordError("an array that may be empty, where a string may be,")
            item = self._rules.fresh("inner", self._element(body, ITEM, resolve_refs(schema["items"], self._root), depth + 1))
            return f"{item}{{{schema.get('minItems', 0)},{schema.get('maxItems', '')}}}"
        if kind in SCALARS:
            return self.json(schema)
        if kind == "string":
            return self._inner_string(body, schema)
        return self._free(body, kind, schema)

    def _inner_string(self, body: TaggedArgs, schema: Any) -> str:
        """A string as JSON, where values of other types are allowed too."""
        form = form_of(schema, self._rules)
        if form is not None and not (schema.keys() & {"enum", "const"}):
            raise UnsupportedKeywordError("a string that may also be something else, and has a form")
        if form is not None:
            literals = [v for v in schema.get("enum", [schema.get("const")]) if isinstance(v, str)]
            return " | ".join(literal(json.dumps(v)) for v in literals if self._tag_word(body) not in v)
        return self._json_string(body)

    def _json_string(self, body: TaggedArgs) -> str:
        string = r'/"([^"\\\x00-\x1F\x7F]|\\["\\\/bfnrt])*"/'
        held = self._rules.fresh("HELD", containing(self._tag_word(body)))
        return self._rules.fresh("STRING", f"{string} & ~{held}")

    def _free(self, body: TaggedArgs, kind: str, schema: Any) -> str:
        """An object or array of any values, as JSON."""
        if kind == "object" and schema.get("additionalProperties") is False and _may_be_empty(schema):
            return literal("{}")
        _check_free(schema)
        string, rule = self._json_string(body), self._rules.rule
        number = rule("NUMBER", r"/-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,14})?/")
        rule("any", f'free_object | free_array | {string} | {number} | "true" | "false" | "null"')
        pair = f'{string} ":" " "? any'
        result = (
            rule("free_object", f'"{{" ({pair} ("," " "? {pair})*)? "}}"'),
            rule("free_array", '"[" (any ("," " "? any)*)? "]"'),
        )
        return result[kind == "array"]

    # Gemma's notation.

    def _gemma_members(self, schema: Any, quote: str, depth: int) -> str:
        if depth > DEEPEST:
            raise UnsupportedKeywordError("a schema nested too deep")
        parts = [
            (need, f"({literal(self._bare_key(k, quote) + ':')} {self._gemma(s, quote, depth)})")
            for need, k, s in members_of(schema, self._root)
        ]
        return self._rules.join_members(parts, '","')

    def _bare_key(self, key: str, quote: str) -> str:
        if not key or any(c in "{}[](),:" or c in WHITE for c in key) or self._shown(quote) in key:
            raise UnsupportedKeywordError(f"a property named {key[:40]!r}")
        return key

    def _gemma(self, schema: Any, quote: str, depth: int) -> str:
        parts = by_type(schema, self._root)
        if not parts:
            raise UnsupportedKeywordError("false")
        return f"({' | '.join(f'({self._gemma_value(kind, part, quote, depth)})' for kind, part in parts)})"

    def _gemma_value(self, kind: str, schema: Any, quote: str, depth: int) -> str:
        if kind == "string":
            return f"{literal(quote)} {self._text(schema, quote)}"
        if kind == "object":
            return f"{literal('{')} {self._gemma_members(schema, quote, depth + 1)} {literal('}')}"
        if kind == "array":
            _check_array(schema)
            items = schema.get("items", {})
            if items in ({}, True):
                items = {"type": ["string", "number", "boolean", "null"]}
            item = self._rules.fresh("item", self._gemma(items, quote, depth + 1))
            return self._array(item, int(schema.get("minItems", 0)), schema.get("maxItems"))
        return self.json(schema)

    def _array(self, item: str, least: int, most: int | None) -> str:
        if most == 0:
            return '"[" "]"'
        more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else int(most) - 1}}}'
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'


def _fitting(body: TaggedArgs, string: bool, allowed: frozenset[str]) -> list[str]:
    """Terminals that may end a key. string: its value is a string, else JSON."""
    fit = [t for t, k in body.key_close if k in ("string" if string else "json", None)]
    labels = allowed | {"number"} if "integer" in allowed else allowed
    named = [t for t in fit if any(f'"{a}"' in t for a in labels)]
    return named or fit


def _check_array(schema: Any) -> None:
    if found := sorted(schema.keys() & ARRAYS):
        raise UnsupportedKeywordError(found[0])


def _may_be_empty(schema: Any) -> bool:
    """Does an object without keys satisfy this schema? False if uncertain."""
    asks = schema.get("required") or schema.get("minProperties") or schema.keys() & (OBJECTS - KEYS)
    return not asks


def _check_free(schema: Any) -> None:
    """UnsupportedKeywordError for a keyword that a grammar of any values does not enforce."""
    sized = {"minItems", "maxItems", "minProperties", "maxProperties", "required", "items", "additionalProperties"}
    found = {k for k in schema.keys() & (ARRAYS | OBJECTS | sized) if not (k in OPEN and schema[k] is True)}
    if found:
        raise UnsupportedKeywordError(min(found))
