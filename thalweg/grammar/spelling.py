"""Tokenizes text from the vocabulary's tokens only, so that forced text uses the tokens that a model expects.

BPE vocabularies number their tokens in the order of the merges. The pair with the least merged id is therefore merged first, as
the tokenizer does. Tokenizers split text into words first, by rules that a vocabulary does not have. This matters for digits,
which many split into groups of up to three, and for little else. Every result is valid: its bytes are those of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from thalweg.grammar.source import GrammarError, GrammarVocabulary

HEAD = 64
"""Bytes spelled as the tokenizer would. A grammar may force kilobytes, and asks again after each token."""
KEPT = 4096
"""Spellings in the cache."""
GROUP = 3
"""A vocabulary with numbers up to this length splits digits into groups of its longest number."""


class Speller:
    """Tokenizes text with one vocabulary."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        special = set(vocabulary.special)
        known = [(t, i) for i, t in enumerate(vocabulary.tokens) if t and i not in special]
        self._ids = dict(reversed(known))
        # A sentencepiece vocabulary has each letter twice, first as a byte. Models write the letter.
        self._ids |= {t: i for t, i in known if len(t) == 1}
        longest = max((len(t) for t in self._ids if t.isdigit()), default=0)
        self._words = re.compile(rb"[0-9]{1,%d}|[^0-9]+" % longest) if 0 < longest <= GROUP else re.compile(rb"(?s:.+)")
        self._spelt = lru_cache(KEPT)(self._head)

    def __call__(self, text: bytes) -> list[int]:
        """Token ids with exactly these bytes, the first HEAD bytes as the tokenizer would. GrammarError if a byte has no
        token."""
        return [*self._spelt(text[:HEAD]), *(self._id(unit) for unit in self._units(text[HEAD:]))]

    def _head(self, text: bytes) -> tuple[int, ...]:
        return tuple(i for word in self._words.findall(text) for i in self._apply_merges(self._units(word)))

    def _units(self, text: bytes) -> list[bytes]:
        """Characters where they are tokens, else bytes."""
        units: list[bytes] = []
        for char in text.decode("utf-8", "surrogateescape"):
            whole = char.encode("utf-8", "surrogateescape")
            units += [whole] if whole in self._ids else [whole[i : i + 1] for i in range(len(whole))]
        return units

    def _apply_merges(self, units: Sequence[bytes]) -> list[int]:
        parts, none = list(units), len(self._ids) + (1 << 31)
        ranks = [self._ids.get(a + b, none) for a, b in pairwise(parts)]
        while ranks and (least := min(ranks)) < none:
            at = ranks.index(least)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
            del ranks[at]
            if at:
                ranks[at - 1] = self._ids.get(parts[at - 1] + parts[at], none)
            if at < len(ranks):
                ranks[at] = self._ids.get(parts[at] + parts[at + 1], none)
        return [self._id(part) for part in parts]

    def _id(self, token: bytes) -> int:
        found = self._ids.get(token)
        if found is None:
            raise GrammarError(f"the model has no token for {token!r}, which the grammar requires")
        return found
