"""Grammars over a vocabulary of bytes, for tests that need no model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from thalweg.grammar.compiled import Compiler
from thalweg.grammar.convert import source_of
from thalweg.grammar.grammars import Grammars
from thalweg.grammar.matcher import Matcher
from thalweg.grammar.source import GrammarError, GrammarRequest, GrammarSource, GrammarVocabulary

EOS, MARK = 256, 257
MERGED = [
    b'{"',
    b'":',
    b'",',
    b'":"',
    b'","',
    b'"}',
    b'""',
    b"12",
    b"345",
    b', "',
    b'": "',
    b"true",
    b"null",
    b'{"":1',
    b'a"',
    b"\\u00",
]
"""Tokens of several bytes, some with whole keys in them."""
VOCABULARY = GrammarVocabulary(
    tokens=[bytes([i]) for i in range(256)] + [b"<eos>", b"<mark>"] + MERGED + [b""] * 14, special=[EOS, MARK], eos=[EOS]
)
VOCAB = len(VOCABULARY.tokens)


def asked(kind: str, value: Any, **options: Any) -> GrammarRequest:
    return GrammarRequest(kind=kind, text=value if isinstance(value, str) and kind != "json" else json.dumps(value), **options)


def source(kind: str, value: Any, **options: Any) -> GrammarSource:
    return source_of(asked(kind, value, **options))


SINGLE = msgspec.structs.replace(
    VOCABULARY, tokens=[t if len(t) == 1 or i in (EOS, MARK) else b"" for i, t in enumerate(VOCABULARY.tokens)]
)
"""The same without tokens of several bytes: every text has one spelling."""


@cache
def grammars() -> Grammars:
    return Grammars(lambda: VOCABULARY)


@cache
def of_bytes() -> Grammars:
    return Grammars(lambda: SINGLE)


@cache
def compiler() -> Compiler:
    return Compiler(VOCABULARY)


def served(kind: str, value: Any, **options: Any) -> GrammarSource:
    """GrammarError if it is not."""
    made = source(kind, value, **options)
    compiler().try_first(made.text)
    return made


def refusal(kind: str, value: Any) -> GrammarError:
    try:
        served(kind, value)
    except GrammarError as e:
        return e
    raise AssertionError("it was served")


def allowed(matcher: Matcher) -> set[int]:
    words = np.zeros(-(-VOCAB // 32), np.uint32)
    matcher.mask(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:VOCAB]
    return set(np.nonzero(bits)[0].tolist())


def accepts(made: GrammarSource, text: str | bytes) -> bool:
    """Does every byte pass its mask, and may the text end after the last?"""
    matcher = of_bytes().matcher(made)
    for byte in text.encode() if isinstance(text, str) else text:
        if byte not in allowed(matcher):
            return False
        matcher.accept([byte])
    return EOS in allowed(matcher)


def tokens_of(text: str) -> Sequence[int]:
    return list(text.encode())
