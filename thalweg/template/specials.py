"""Tracks special tokens written out by users through a chat template, so that user data stays text.

Before rendering, each special token's text in a caller's string is put between two marks. Marks are characters of the private
use area that do not occur in the request, with a distinct pair for each token. After rendering, the marks are removed. A
special token still between its pair is known to be the caller's. The token's text is intact, so templates that search for it,
or split at it, still work. A string that ends in the beginning of a special token gets a mark at its end: if the template's
next text completes the token, it is the caller's too.

Not covered: special tokens that a template builds around a caller's string ('<|' + role + '|>') are intended as special.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.errors import RequestError

Span = tuple[int, int]
"""Characters [start, end) of a text."""
FIRST, LAST = 0xE200, 0xF8FF
_PRIVATE = re.compile("[\ue000-\uf8ff]")
_ESCAPED = re.compile(r"\\u[eEfF][0-9a-fA-F]{3}")
"""A mark in `tojson`'s ASCII form."""
MOST = 1 << 16
"""Most special tokens written out in a request. More are rejected, as they are expensive."""
_SLICE = 1 << 20
"""Characters searched at a time, as the search holds the GIL."""


class SpecialText:
    """Finds special tokens written out in text. Immutable."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = frozenset(tokens) - {""}
        self._sorted = sorted(self._tokens)
        self._longest = max(map(len, self._tokens), default=0)
        lengths: dict[str, set[int]] = {}
        for t in self._tokens:
            lengths.setdefault(t[:2], set()).add(len(t))
        # A token of one character may occur where longer ones could begin.
        self._lengths = {s: sorted(n | lengths.get(s[0], set()), reverse=True) for s, n in lengths.items()}
        # Only first characters: some vocabularies have thousands of tokens, and their expression needs seconds to compile.
        self._starts = re.compile(f"(?=({'|'.join(map(re.escape, sorted(self._lengths, reverse=True)))}))")

    def spans(self, text: str) -> list[Span]:
        """Spans of special tokens in the text, from left to right, without overlaps. Of several with one beginning, the
        longest. RequestError for more than MOST."""
        if not any(start in text for start in self._lengths):
            return []
        out: list[Span] = []
        end = 0
        for at, start in self._places(text):
            for n in self._lengths[start] if at >= end else ():
                if (found := text[at : at + n]) in self._tokens:
                    end = at + len(found)
                    out.append((at, end))
                    break
            if len(out) > MOST:
                raise _too_many()
        return out

    def _places(self, text: str) -> Iterator[tuple[int, str]]:
        """(position where a token could begin, its first one or two characters)."""
        for low in range(0, len(text), _SLICE):
            high = low + _SLICE
            for m in self._starts.finditer(text, low, high + 1):
                if m.start() < high:
                    yield m.start(), m[1]

    def mark(self, values: Any) -> tuple[Any, TokenMarks | None]:
        """(values, marks): JSON values with every special token in strings and keys marked, and the object that removes the
        marks. Without special tokens, the same values and None."""
        strings = set(_strings(values))
        found = {s: spans for s in strings if (spans := self.spans(s)) or self._has_partial_token(s)}
        if not found:
            return values, None
        if sum(map(len, found.values())) > MOST:
            raise _too_many()
        tokens = sorted({s[a:b] for s, spans in found.items() for a, b in spans})
        marks = TokenMarks(_find_unused(strings, 2 * len(tokens) + 1), tokens)
        marked = {s: marks.put(s, spans, self._has_partial_token(s)) for s, spans in found.items()}
        return _replace_strings(values, marked), marks

    def _has_partial_token(self, text: str) -> bool:
        """Does the text end in the beginning of a special token?"""
        return any(self._begins_one(text[-n:]) for n in range(1, min(len(text) + 1, self._longest)))

    def _begins_one(self, text: str) -> bool:
        """Is the text a proper prefix of a special token? Such tokens follow it in sorted order."""
        i = bisect_right(self._sorted, text)
        return i < len(self._sorted) and self._sorted[i].startswith(text)


@dataclass(frozen=True, slots=True)
class TokenMarks:
    """tokens[i] is between chr(base + 2i) and chr(base + 2i + 1). The character after the last pair marks the end of a
    string."""

    base: int
    tokens: list[str]

    def put(self, text: str, spans: Sequence[Span], unfinished: bool = False) -> str:
        out, last = [], 0
        for a, b in spans:
            i = self.base + 2 * self.tokens.index(text[a:b])
            out += [text[last:a], chr(i), text[a:b], chr(i + 1)]
            last = b
        out += [text[last:], chr(self.base + 2 * len(self.tokens)) if unfinished else ""]
        return "".join(out)

    def take(self, text: str) -> tuple[str, list[Span]]:
        """The text without marks, and the spans of the caller's special tokens. An empty span is the end of a caller's string:
        a token across it is the caller's."""
        out: list[str] = []
        spans: list[Span] = []
        last = length = 0
        opened = -1
        for m in self._pattern().finditer(text):
            piece = text[last : m.start()]
            out.append(piece)
            length += len(piece)
            last = m.end()
            mark = (ord(m[0]) if len(m[0]) == 1 else int(m[0][2:], 16)) - self.base
            if mark == 2 * len(self.tokens):
                spans.append((length, length))
            elif mark % 2 and opened == mark - 1 and piece == self.tokens[mark // 2]:
                spans.append((length - len(piece), length))
            opened = mark
        return "".join([*out, text[last:]]), spans

    def remove(self, text: str) -> str:
        """The text without marks."""
        return self._pattern().sub("", text)

    def _pattern(self) -> re.Pattern[str]:
        chars = [chr(self.base + i) for i in range(2 * len(self.tokens) + 1)]
        return re.compile("|".join([f"[{chars[0]}-{chars[-1]}]", *(rf"\\u{ord(c):04x}" for c in chars)]))


def _find_unused(strings: Collection[str], count: int) -> int:
    """The first of `count` consecutive private characters that occur in no string, plain or escaped."""
    used = {ord(c) for s in strings for c in _PRIVATE.findall(s)}
    used |= {int(e[2:], 16) for s in strings for e in _ESCAPED.findall(s)}
    free = FIRST
    for code in [*sorted(c for c in used if c >= FIRST), LAST + 1]:
        if code - free >= count:
            return free
        free = code + 1
    raise RequestError(
        "messages: too many characters of the private use area, with special tokens written out; remove some", "messages"
    )


def _too_many() -> RequestError:
    return RequestError(f"messages: more than {MOST} special tokens are written out in them; remove some", "messages")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for k, v in value.items():
            yield from _strings(k)
            yield from _strings(v)
    elif isinstance(value, list | tuple):
        for v in value:
            yield from _strings(v)


def _replace_strings(value: Any, new: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return new.get(value, value)
    if isinstance(value, dict):
        return {_replace_strings(k, new): _replace_strings(v, new) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_strings(v, new) for v in value]
    return value
