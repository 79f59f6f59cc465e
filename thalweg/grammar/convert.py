"""Converts a client's grammar to llguidance's form. Runs in the validator's child process, as inputs are untrusted."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from thalweg.grammar import compiled, ebnf, regexes, tags
from thalweg.grammar.schema.keys import may_run_out
from thalweg.grammar.schema.prepare import prepare_schema
from thalweg.grammar.schema.walk import children
from thalweg.grammar.source import GrammarError, GrammarRequest, GrammarSource

WHITESPACE = r"[ ]{1,2}|\n[ \t]{0,40}"
"""White space between JSON tokens: enough for compact and indented style. Without a limit, an unsure model may write spaces to
the end of its budget."""


MOST_CHOICE = 10_000
"""Characters of one choice. The compiled expression has a state for every byte."""


def source_of(requested: GrammarRequest) -> GrammarSource:
    """The grammar of a request. GrammarError, with a pointer into a schema, for unsupported features."""
    match requested.kind:
        case "json" | "json_object":
            schema = {"type": "object"} if requested.kind == "json_object" else read(requested.text)
            if requested.inside:
                return GrammarSource(text=compiled.lark(f"start: {ebnf.inner(schema, json_options(requested))}"))
            result = prepare_schema(schema, requested.closed)
            return GrammarSource(
                text=compiled.from_json(result, json_options(requested)), json=True, few_keys=may_run_out(result)
            )
        case "regex":
            return GrammarSource(text=compiled.regex(regexes.simplify(requested.text)))
        case "choice":
            return GrammarSource(text=compiled.regex(_choices(read(requested.text))))
        case "grammar":
            text = ebnf.to_lark(requested.text, json_options(requested))
            inner = source_of(requested.inner).text if requested.inner is not None else ""
            return GrammarSource(text=compiled.nest(text, inner) if inner else compiled.lark(text))
        case "structural_tag":
            return GrammarSource(text=tags.to_grammar(read(requested.text), requested))


def json_options(requested: GrammarRequest) -> dict[str, object]:
    """llguidance's options for JSON. No schema can override them."""
    options: dict[str, object] = {"lenient": False, "coerce_one_of": False, "item_separator": ",", "key_separator": ":"}
    if requested.compact:
        return {**options, "whitespace_flexible": False}
    return {**options, "whitespace_flexible": True, "whitespace_pattern": requested.whitespace or WHITESPACE}


def read(text: str) -> Any:
    """Parses JSON. GrammarError if it is malformed."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise GrammarError(f"is not JSON: {e}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _choices(choices: Any) -> str:
    """A regular expression for one of these texts. As alternatives of a rule, each would add an item to every parser step."""
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise GrammarError("must be a list of at least one text, without empty ones")
    long = next((i for i, c in enumerate(choices) if len(c) > MOST_CHOICE), None)
    if long is not None:
        raise GrammarError(f"item {long} has {len(choices[long])} characters; the limit is {MOST_CHOICE}")
    return "|".join(regexes.literal(c) for c in dict.fromkeys(choices))


MOST_LOCATED = 20_000
"""Characters of a schema. In larger ones, compiler errors are not located."""
MOST_TRIED = 60


def locate_error(requested: GrammarRequest, compiler: compiled.Compiler, why: str) -> str:
    """Pointer to the innermost schema with the compiler's error. "#": not found."""
    root, at, tries = read(requested.text), "#", 0
    if len(requested.text) > MOST_LOCATED or not isinstance(root, dict):
        return at
    shared = {k: root[k] for k in ("$defs", "definitions") if k in root}
    inner: Any = root
    while isinstance(inner, dict):
        for pointer, child in children(inner):
            tries += 1
            if tries > MOST_TRIED:
                return at
            if _fault({**shared, **child} if isinstance(child, dict) else child, requested, compiler) == why:
                inner, at = child, f"{at}/{pointer}"
                break
        else:
            return at
    return at


def _fault(schema: Any, requested: GrammarRequest, compiler: compiled.Compiler) -> str:
    try:
        compiler.try_first(source_of(msgspec.structs.replace(requested, text=json.dumps(schema))).text)
    except GrammarError as e:
        return e.why
    return ""
