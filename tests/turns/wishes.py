"""A model that wants the marks of its format everywhere, held by a grammar; and random schemas of tools.

The judge of arguments is jsonschema. The reader and the grammar are the only things of ours between the two.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from thalweg.grammar import compiled, ebnf
from thalweg.grammar.compiled import Compiler
from thalweg.grammar.convert import json_options
from thalweg.grammar.source import GrammarRequest
from thalweg.grammar.source import GrammarVocabulary as Words
from thalweg.text.marks import mark
from thalweg.turns.bind import BoundTurnFormat, bind, terminals
from thalweg.turns.format import TurnFormat

EOS = 0
PIECES = ["é", "日", "ab", '"}', '"]', '",', '": ', '{"', "[{", "}}", "}]", "null", "</", "\\u00e9", "\\n", "\\/", "\\\"",
          "true", "None", "x y", "\n", "2024-02-29", "12", "aaaa"]  # fmt: skip
CONTROL = re.compile(r"<[^<>\s]*>|\[[^\[\]]*\]|\]<\]minimax\[>\[|｜DSML｜")
"""What an added token of a vocabulary looks like."""
BARE = ['{"name": "go", "', '[{"name": "go", "', "[go("]
"""What begins a call that has no terminal."""
ENDS = ["<eos>", '"}', '"', "}", "]", ")"]


@dataclass
class Tokens:
    """A vocabulary in which terminals of a format are tokens: added ones, or pieces of text that spell them."""

    texts: list[bytes]
    added_tokens: dict[int, str]
    special_ids: frozenset[int]
    bound: BoundTurnFormat
    marks: list[int]
    """Tokens that are, or begin, terminals."""
    begins: list[int]
    """Tokens that begin calls."""
    compiler: Compiler


@lru_cache(maxsize=4)
def tokens_of(turn: TurnFormat, kind: str) -> Tokens:
    """kind: "text" (terminals are text), "added" (control tokens that are not special, as Qwen has them) or "special"."""
    texts = ["<eos>", *map(chr, range(128)), *PIECES]
    found = [t for t in dict.fromkeys(terminals(turn)) if t and not t.isalnum()]
    control = list(dict.fromkeys(c for t in found for c in CONTROL.findall(t)))
    begun = [turn.calls.beginning, *(BARE if turn.calls.bare else [])]
    pieces = [t for t in dict.fromkeys([*found, *control, *begun]) if t and t not in texts]
    texts += pieces
    added = {i: t for i, t in enumerate(texts) if t in control} if kind != "text" else {}
    special = frozenset({EOS, *(added if kind == "special" else ())})
    spelt = Spelt({EOS: "<eos>", **added}, special)
    bound = bind(turn, spelt)
    marks = [i for i, t in enumerate(texts) if t in pieces]
    spelling = [t.encode() for t in texts] + [bytes([b]) for b in range(128, 256)]
    words = Words(tokens=spelling, special=sorted(special), eos=[EOS])
    begins = [i for i, t in enumerate(texts) if t in BARE or (len(t) > 1 and turn.calls.beginning.startswith(t))]
    return Tokens(spelling, added, special, bound, marks, begins, Compiler(words))


@dataclass
class Spelt:
    added_tokens: Mapping[int, str]
    special_ids: frozenset[int]


def wish(tokens: Tokens, source: str, rng: random.Random, most: int = 300, inner: str = "", calls: bool = False) -> str | None:
    """What the model says under this grammar, as readers get it. None: it did not come to an end. inner: what `@inner` is.
    calls: it begins with a call where it may, and goes on where it may end. Else it begins with `inner`."""
    ends = 0.05 if calls else 0.7
    asked = GrammarRequest(kind="grammar", text=source)
    lark = ebnf.to_lark(source, json_options(asked))
    text = compiled.nest(lark, inner) if inner else compiled.lark(lark)
    matcher = tokens.compiler.compile(text)
    patience, said = rng.randrange(5, 60), bytearray()
    closing = [tokens.texts.index(e.encode()) for e in ENDS]
    for at in range(most):
        words = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        assert not matcher.is_error(), (matcher.get_error(), source)
        allowed = np.flatnonzero(np.unpackbits(words, bitorder="little")[: len(tokens.texts)]).tolist()
        if not allowed:
            assert matcher.is_accepting(), source
            break
        begins = tokens.begins if calls else [tokens.texts.index(b"{")] if inner else []
        first = [i for i in allowed if i in begins] if not at else []
        token = rng.choice(first) if first else choose(tokens, allowed, closing, rng, at > patience, ends)
        if token == EOS:
            break
        assert matcher.consume_token(token), (matcher.get_error(), source)
        marked = token in tokens.bound.marked
        said += mark(token).encode("utf-8", "surrogatepass") if marked else tokens.texts[token]
    else:
        return None
    return said.decode("utf-8", "surrogatepass")


def choose(tokens: Tokens, allowed: list[int], closing: list[int], rng: random.Random, tired: bool, ends: float) -> int:
    wanted = [t for t in allowed if t in tokens.marks]
    if tired:
        least = [e for e in closing if e in allowed]
        if least and rng.random() < 0.8:
            return least[0]
        return rng.choice(wanted if wanted and rng.random() < 0.8 else allowed)
    if EOS in allowed and rng.random() < ends:
        return EOS
    return rng.choice(wanted if wanted and rng.random() < 0.6 else [t for t in allowed if t != EOS] or allowed)


KEYS = ["a", "b", "item", "name", "arguments", "x-y"]
PATTERNS = ["^[a-c]+$", "b", "^x|y$", r"^\d{2,3}$", "^(on|off)$", r"\w", "^[^<]*$"]


def string(rng: random.Random) -> dict[str, Any]:
    return rng.choice(
        [
            {"type": "string"},
            {"type": "string", "minLength": rng.randrange(1, 20)},
            {"type": "string", "minLength": 2, "maxLength": 2 + rng.randrange(9)},
            {"type": "string", "pattern": rng.choice(PATTERNS)},
            {"type": "string", "enum": ["ab", 'q"', "日", "</x>"]},
            {"enum": ["on", "off"]},
            {"const": "é\n<b>"},
            {"type": "string", "format": "date"},
            {"type": "string", "anyOf": [{"minLength": 5}, {"pattern": "^a"}]},
            {"type": "string", "not": {"const": ""}},
        ]
    )


def value(rng: random.Random, depth: int = 0) -> Any:
    """A schema of a value."""
    kind = rng.randrange(12 if depth < 2 else 7)
    match kind:
        case 0 | 1 | 2:
            return string(rng)
        case 3:
            return rng.choice([{"type": "integer"}, {"type": "integer", "minimum": 3, "maximum": 40}, {"enum": [1, 2, 10]}])
        case 4:
            return rng.choice(
                [{"type": "number"}, {"type": "number", "exclusiveMinimum": 0}, {"type": "boolean"}, {"type": "null"}]
            )
        case 5:
            return rng.choice(
                [
                    {"type": ["string", "null"]},
                    {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                    {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
                    {"enum": ["auto", 3, None]},
                ]
            )
        case 6:
            return {"$ref": "#/$defs/Shared"}
        case 7 | 8:
            sizes = rng.choice([{}, {"minItems": 1}, {"minItems": 1, "maxItems": 3}, {"maxItems": 2}])
            return {"type": "array", "items": value(rng, depth + 1), **sizes}
        case 9:
            return rng.choice([{}, {"type": "object"}, {"type": "array"}])
    return members(rng, depth + 1)


def members(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    keys = rng.sample(KEYS, rng.randrange(4))
    made: dict[str, Any] = {"type": "object", "properties": {k: value(rng, depth) for k in keys}}
    made["required"] = [k for k in keys if rng.random() < 0.6]
    extra = rng.choice([None, False, True, {"type": "integer"}])
    return made if extra is None else {**made, "additionalProperties": extra}


def parameters(rng: random.Random) -> dict[str, Any]:
    """A schema of a tool's parameters."""
    made = members(rng)
    if rng.random() < 0.2 and made.get("additionalProperties") is not False:
        made["required"] = [*made["required"], "more"]
    shared = rng.choice([string(rng), {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}])
    return {**made, "$defs": {"Shared": shared}} if '"$ref"' in str(made).replace("'", '"') else made


def mentions(tokens: Tokens, rng: random.Random, most: int = 6) -> str:
    """Words with terminals of the format between them, but for what ends reasoning."""
    turn = tokens.bound.turn
    close = turn.reasoning.close if turn.reasoning is not None else ""
    found = [t for t in dict.fromkeys(terminals(turn)) if t and not t.isalnum() and t != close]
    text = "".join(rng.choice([*found, " ", "\n", "word", '"', "{", "["]) for _ in range(most))
    return text.replace(close, "") if close else text
