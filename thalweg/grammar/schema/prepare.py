"""Prepares a schema for llguidance: renames keywords of older drafts, drops annotations, and calls the rewriters. Unsupported
keywords are errors, with a pointer.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from thalweg.grammar import regexes
from thalweg.grammar.schema import rewrite
from thalweg.grammar.schema.choices import as_enum
from thalweg.grammar.schema.walk import children, find, put, references
from thalweg.grammar.source import GrammarError

FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"})
"""Formats that llguidance enforces. Other formats are annotations, as JSON Schema defines them."""
SIZES = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minContains", "maxContains")
UNSERVED = ("uniqueItems", "$dynamicRef", "$recursiveRef")
MOST_REFERENCES = 256
"""Longest chain of references."""
MOST_DEPTH = 200
"""Depth of nested schemas."""


def prepare_schema(schema: Any, closed: bool = False) -> dict[str, Any]:
    """A schema that accepts the same values as `schema`, or fewer. closed: objects have only named properties. GrammarError."""
    if schema is False:
        raise GrammarError("nothing satisfies it", "#")
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise GrammarError(f"must be an object, not {_kind(schema)}", "#")
    return _SchemaPreparer(schema, closed).whole()


class _SchemaPreparer:
    def __init__(self, root: dict[str, Any], closed: bool) -> None:
        self._root, self._closed = root, closed
        self._open: list[str] = []
        """References being resolved."""
        self._known: dict[str, Any] = {}

    def whole(self) -> dict[str, Any]:
        self._check_references()
        result = self.schema(self._root, "#", 0)
        assert isinstance(result, dict)
        return result

    def _check_references(self) -> None:
        """GrammarError for a long chain of references, as the compiler recurses along it."""
        level = references({k: v for k, v in self._root.items() if k not in ("$defs", "definitions")})
        known: set[str] = set()
        for _ in range(MOST_REFERENCES):
            known |= level
            found: set[str] = set()
            for ref in level:
                with suppress(KeyError):
                    found |= references(find(self._root, ref))
            level = found - known
            if not level:
                return
        raise GrammarError(f"a chain of references is longer than {MOST_REFERENCES} steps", min(level))

    def schema(self, schema: Any, at: str, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise GrammarError(f"a schema must be an object or a boolean, not {_kind(schema)}", at)
        if depth > MOST_DEPTH:
            raise GrammarError(f"nested more than {MOST_DEPTH} schemas deep", at)
        try:
            return self._rewritten(schema, at, depth)
        except (TypeError, AttributeError, ValueError, LookupError) as e:
            if isinstance(e, GrammarError):
                raise
            raise GrammarError("a keyword has an invalid value", at) from None

    def _rewritten(self, schema: dict[str, Any], at: str, depth: int) -> dict[str, Any]:
        raw = self._plain(schema, at)
        new = dict(raw)
        for pointer, inner in list(children(new)):
            put(new, pointer, self.schema(inner, f"{at}/{pointer}", depth + 1))
        seen = rewrite.RewriteContext(
            raw, lambda ref: find(self._root, ref), partial(self._again, at, depth), partial(self._found, at), at
        )
        for step in rewrite.STEPS:
            new = step(new, seen)
        for key in UNSERVED:
            if key in new:
                raise GrammarError(f"{key} is not supported", f"{at}/{key}")
        return new

    def _again(self, at: str, depth: int, schema: Any) -> Any:
        return self.schema(schema, at, depth + 1)

    def _found(self, at: str, ref: str) -> Any:
        """The target of a reference, prepared. GrammarError if it needs itself."""
        if ref in self._known:
            return self._known[ref]
        if ref in self._open:
            raise GrammarError(f"{ref:.100} leads to itself, which is not supported here", at)
        try:
            found = find(self._root, ref)
        except KeyError:
            raise GrammarError(f"{ref:.100} names nothing in this schema", at) from None
        self._open.append(ref)
        self._known[ref] = self.schema(found, ref if ref.startswith("#/") else at, len(self._open) * 4)
        self._open.pop()
        return self._known[ref]

    def _plain(self, schema: dict[str, Any], at: str) -> dict[str, Any]:
        """The schema with current keyword names, and with keywords rewritten that depend on no others."""
        new = {k: v for k, v in schema.items() if k != "x-guidance"}
        for key in SIZES:
            value = new.get(key)
            if isinstance(value, float) and value.is_integer():
                new[key] = int(value)
        if isinstance(new.get("format"), str) and new["format"] not in FORMATS:
            del new["format"]
        if new.get("uniqueItems") is False or _short(new):
            new.pop("uniqueItems", None)
        if isinstance(new.get("pattern"), str):
            new["pattern"] = regexes.simplify(new["pattern"])
        self._older(new, at)
        if self._closed and "properties" in new and "additionalProperties" not in new:
            new["additionalProperties"] = False
        for key in ("allOf", "anyOf", "oneOf", "prefixItems"):
            if key in new and (not isinstance(new[key], list) or not new[key]):
                raise GrammarError("must be a list of at least one schema", f"{at}/{key}")
        for key in ("properties", "patternProperties", "$defs", "definitions"):
            if key in new and not isinstance(new[key], dict):
                raise GrammarError("must be an object of schemas", f"{at}/{key}")
        return as_enum(new)

    def _older(self, new: dict[str, Any], at: str) -> None:
        """Keywords of drafts 4 to 2019-09."""
        if isinstance(new.get("items"), list):
            new["prefixItems"] = new.pop("items")
            if "additionalItems" in new:
                new["items"] = new.pop("additionalItems")
            if not new["prefixItems"]:
                del new["prefixItems"]
        new.pop("additionalItems", None)
        for name, value in (new.pop("dependencies", None) or {}).items():
            kind = "dependentRequired" if isinstance(value, list) else "dependentSchemas"
            new[kind] = {**new.get(kind, {}), name: value}
        for strict, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(new.get(strict), bool) and new.pop(strict) and bound in new:
                new[strict] = new.pop(bound)
        if "$dynamicAnchor" in new:
            new.setdefault("$anchor", new.pop("$dynamicAnchor"))
        if "$dynamicRef" in new and self._static(new["$dynamicRef"]):
            new["$ref"] = new.pop("$dynamicRef")

    def _static(self, ref: Any) -> bool:
        """Does a dynamic reference have exactly one target?"""
        if not isinstance(ref, str):
            return False
        if ref.startswith("#/"):
            return True
        name, found, todo = ref.removeprefix("#"), 0, [self._root]
        while todo:
            schema = todo.pop()
            if isinstance(schema, dict):
                if isinstance(schema.get("$id"), str) and schema is not self._root:
                    return False
                found += name in (schema.get("$dynamicAnchor"), schema.get("$anchor"))
                todo += [inner for _, inner in children(schema)]
        return ref.startswith("#") and found == 1


def _short(new: dict[str, Any]) -> bool:
    """Is the array too short for two equal items?"""
    most = new.get("maxItems")
    return isinstance(most, int) and most <= 1


def _kind(value: Any) -> str:
    return {list: "a list", str: "text", type(None): "null"}.get(type(value), "a number")
