"""Grammars as people write them: EBNF (GBNF, `root ::= ...`) or llguidance's Lark. Both become Lark."""

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
    """GrammarError for EBNF that cannot be read. What Lark cannot say its compiler finds. options: of schemas inside."""
    if not text.strip():
        raise GrammarError("is empty")
    if _RULE.search(text):
        return compiled.from_gbnf(text)
    return _schemas(text, options)


def inner(schema: Any, options: dict[str, object] | None = None) -> str:
    """A JSON schema as a part of Lark, where nothing watches its text. GrammarError, with a pointer into `schema`."""
    try:
        made = order_keys(prepare_schema(schema))
    except GrammarError as e:
        raise GrammarError(e.why, known_pointer(schema, e.pointer)) from None
    return "%json " + json.dumps({**made, "x-guidance": options or {"lenient": False}})


def _schemas(text: str, options: dict[str, object] | None) -> str:
    """The schemas in Lark, prepared as those of requests are."""
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
