"""Words of a transcript, with the times of their tokens."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thalweg.text.tokenizer import Tokenizer

UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages written without spaces: each character is a word."""
BEFORE = "\"'“¡¿([{-"
"""Punctuation that belongs to the next word."""
AFTER = "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the word before."""
UNKNOWN = "\ufffd"


@dataclass(slots=True)
class TimedWord:
    text: str
    """With the space in front of it."""
    start: float
    """Seconds, in the whole audio."""
    end: float


def split_words(
    tokens: Sequence[int], times: Sequence[tuple[float, float]], tokenizer: Tokenizer, language: str
) -> list[TimedWord]:
    """The words of one segment. tokens: its text. times: seconds at which each token begins and ends. language: its code."""
    words = list[TimedWord]()
    for part in _split_characters(tokens, times, tokenizer):
        begins = part.text.startswith(" ") or part.text.strip() in string.punctuation
        if not words or begins or language in UNSPACED:
            words.append(part)
        else:
            words[-1].text, words[-1].end = words[-1].text + part.text, part.end
    return _join_punctuation(words)


def _split_characters(tokens: Sequence[int], times: Sequence[tuple[float, float]], tokenizer: Tokenizer) -> Iterator[TimedWord]:
    """The fewest tokens each that are whole characters. Bytes that are no character count as one each, as the whole text has
    them."""
    whole, written, begin = tokenizer.decode(list(tokens), True), 0, 0
    for i in range(len(tokens)):
        text = tokenizer.decode(list(tokens[begin : i + 1]), True)
        at = written + text.find(UNKNOWN)
        if UNKNOWN in text and at < len(whole) and whole[at] != UNKNOWN:
            continue
        yield TimedWord(text, times[begin][0], times[i][1])
        written, begin = written + len(text), i + 1


def _join_punctuation(words: list[TimedWord]) -> list[TimedWord]:
    """Opening punctuation joined with the next word, then closing punctuation with the one before."""
    joined = list[TimedWord]()
    for word in reversed(words):
        if joined and word.text.startswith(" ") and word.text.strip() in BEFORE:
            joined[-1] = TimedWord(word.text + joined[-1].text, word.start, joined[-1].end)
        else:
            joined.append(word)
    out = list[TimedWord]()
    for word in reversed(joined):
        if out and not out[-1].text.endswith(" ") and word.text in AFTER:
            out[-1].text, out[-1].end = out[-1].text + word.text, word.end
        else:
            out.append(word)
    return out
