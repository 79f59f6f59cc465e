"""A vocabulary as plain data, for files that hold one in a form of their own, and the words that such data is spelled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Kinds of tokens, as sentencepiece and GGUF number them."""
SENTENCEPIECE, BYTE_LEVEL, CHARACTERS, WORDPIECE, UNIGRAM = "llama", "gpt2", "gemma4", "bert", "t5"
"""How a vocabulary makes tokens: merging pieces of characters by score, bytes or characters by rank, or taking the longest
piece that a word begins with, or those whose scores sum to the most."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    where: str
    """File, for messages."""
    model: str
    pre: str | None
    """How a byte-level vocabulary cuts text into words: a name of `thalweg.text.words`."""
    tokens: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float] | None
    merges: Sequence[str] | None
    specials: Mapping[str, int]
    """"bos", "eos", "unknown", "padding", "mask" ... -> id."""
    adds: Mapping[str, bool]
    """What the file says of adding "bos", "eos", and "prefix", the space before a text, and of changing it first: "lowercase",
    "accents" (which are stripped), "spaces" (several of which become one)."""
    templates: Mapping[str, str]
    """Chat templates, name -> source; the usual one is "default"."""
    charsmap: bytes | None = None
    """Sentencepiece's table of characters that are replaced."""
