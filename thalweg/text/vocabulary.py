"""A vocabulary as plain data, for file formats other than tokenizer.json, with its constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Kinds of tokens, with the numbers of sentencepiece and GGUF."""
SENTENCEPIECE, BYTE_LEVEL, CHARACTERS, WORDPIECE, UNIGRAM = "llama", "gpt2", "gemma4", "bert", "t5"
"""Tokenization of a vocabulary: merge pieces by score, merge bytes or characters by rank, longest prefix of a word, or largest
sum of scores."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    where: str
    """File, for messages."""
    model: str
    pre: str | None
    """Word patterns of a byte-level vocabulary: a name of `thalweg.text.words`."""
    tokens: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float] | None
    merges: Sequence[str] | None
    specials: Mapping[str, int]
    """"bos", "eos", "unknown", "padding", "mask" ... -> id."""
    adds: Mapping[str, bool]
    """The file's flags. Additions: "bos", "eos", and "prefix" (a space before a text). Normalisation: "lowercase", "accents"
    (stripped), "spaces" (several become one)."""
    templates: Mapping[str, str]
    """Chat templates, name -> source. The usual one is "default"."""
    charsmap: bytes | None = None
    """Sentencepiece's table of character replacements."""
