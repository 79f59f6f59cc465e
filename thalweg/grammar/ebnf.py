"""Converts grammars in EBNF (GBNF, `root ::= ...`) or llguidance's Lark to Lark."""

from __future__ import annotations

import json
import re
from typing import Any

from thalweg.grammar import compiled
from thalweg.grammar.schema.ordered import order_keys
from thalweg.grammar.schema.prepare import prepare_schema
from thalweg.grammar.schema.walk import known_pointer
from thalweg.grammar.source import GrammarError

_RULE = re.compile(r"^\s*[A-Za-z_][\w-]*\s*::=", re.MULTILINE)
_JSON = re.compile(r"%json\s*(?=\{)")


def to_lark(text: str, options: dict[str, object] | None = None) -> str:
    """The grammar in Lark. GrammarError for malformed EBNF. The compiler finds errors in Lark. options: for embedded
    schemas."""
    if not text.strip():
        raise GrammarError("is empty")
    if _RULE.search(text):
        return compiled.from_gbnf(text)
    return _schemas(text, options)


def inner(schema: Any, options: dict[str, object] | None = None) -> str:
    """A JSON schema as a part of Lark, where `JsonGuard` does not watch the text. GrammarError, with a pointer into
    `schema`."""
    try:
        result = order_keys(prepare_schema(schema))
    except GrammarError as e:
        raise GrammarError(e.why, known_pointer(schema, e.pointer)) from None
    return "%json " + json.dumps({**result, "x-guidance": options or {"lenient": False}})


def _schemas(text: str, options: dict[str, object] | None) -> str:
    """The Lark text with its embedded schemas prepared as requests' schemas are."""
    out, at, decoder = [], 0, json.JSONDecoder()
    for found in _JSON.finditer(text):
        if found.start() < at:
            continue
        try:
            schema, end = decoder.raw_decode(text, found.end())
        except (ValueError, RecursionError) as e:
            raise GrammarError(f"%json: not JSON: {e}") from None
        out += [text[at : found.start()], inner(schema, options)]
        at = end
    return "".join([*out, text[at:]])
