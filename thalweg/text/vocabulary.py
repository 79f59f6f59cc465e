"""A vocabulary as plain data, for files that hold one in a form of their own, and the words that such data is spelled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Kinds of tokens, as sentencepiece and GGUF number them."""
SENTENCEPIECE, BYTE_LEVEL = "llama", "gpt2"
"""How a vocabulary makes tokens: merging pieces of characters by score, or of bytes by rank."""


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
    """What the file says of adding "bos", "eos", and "prefix", the space before a text."""
    templates: Mapping[str, str]
    """Chat templates, name -> source; the usual one is "default"."""
