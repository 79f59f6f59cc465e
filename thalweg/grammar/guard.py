"""Prevents repeated keys and unbounded numbers, which JSON grammars cannot express. Watches the text by byte.

A grammar with free keys allows repeated ones, and JSON readers then keep one of the two values. It bounds no number either:
an unsure model may write digits to the end of its budget. Fractions get as many digits as 64-bit readers distinguish, and
exponents stay below those read as infinity. The guard narrows masks and never widens them.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from thalweg.grammar.source import GrammarError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    U32 = NDArray[np.uint32]

WHOLE, FRACTION, EXPONENT = range(3)
MOST_DIGITS = (24, 15, 2)
"""Digits of a number without a fraction, of a number with one, and of an exponent."""
_HUGE = re.compile(rb"(^|[0-9])[eE][+-]?[0-9]{3}")
_OPENS_KEY = re.compile(rb',[ \t\r\n]*("(?:[^"\\]|\\.)*\\?)?$', re.DOTALL)
_ESCAPED = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|[^u])", re.DOTALL)
_HALF_ESCAPE = re.compile(rb"(?:[^\\]|^)(?:\\\\)*(\\(?:u[0-9a-fA-F]{0,3})?)$", re.DOTALL)
KEY, STRING, OUT = range(3)
USED_UP = "every key that the grammar allows here is in the object already"
_QUOTE, _ESCAPE, _DIGITS, _SIGNS = ord('"'), ord("\\"), frozenset(b"0123456789"), frozenset(b"+-")


class JsonGuard:
    """Tables of a vocabulary, shared by the states of all texts."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self.words = -(-len(tokens) // 32)
        order = sorted((t, i) for i, t in enumerate(tokens) if t)
        self._sorted = [t for t, _ in order]
        self._ids = np.array([i for _, i in order], np.int64)
        begins: dict[int, list[int]] = {}
        for i, t in enumerate(tokens):
            begins.setdefault(len(t) - len(t.lstrip(b"0123456789")), []).append(i)
        self.longer = [self.mask([i for n in begins if n > most for i in begins[n]]) for most in range(max(begins, default=0))]
        """Number of digits -> mask of tokens that begin with more digits."""
        self.huge = self.mask([i for i, t in enumerate(tokens) if _HUGE.search(t)])
        self.escapes = self.mask([i for i, t in enumerate(tokens) if _ESCAPE in t.split(b'"')[0]])
        self.keys = [i for i, t in enumerate(tokens) if t.count(b'"') > 1]
        """Tokens that may contain a whole key."""
        self.keys_mask = self.mask(self.keys)
        self.quoted = [i for i, t in enumerate(tokens) if b'"' in t]
        self.quoted_mask = self.mask(self.quoted)
        opening = [(i, t) for i, t in enumerate(tokens) if _OPENS_KEY.search(t)]
        self.openers = self.mask([i for i, _ in opening])
        """Tokens after which an object may need a key, or be within one."""
        self.openers_quoted = self.mask([i for i, t in opening if b'"' in t.partition(b",")[0]])
        """Tokens of `openers` that may start within a string."""
        self.begins_key = self.mask([i for i, t in enumerate(tokens) if t.lstrip(b" \t\r\n").startswith(b'"')])
        self.quote = next((i for i, t in enumerate(tokens) if t == b'"'), -1)

    def mask(self, ids: Sequence[int] | NDArray[np.int64]) -> U32:
        out = np.zeros(self.words, np.uint32)
        at = np.asarray(ids, np.int64)
        np.bitwise_or.at(out, at // 32, np.uint32(1) << (at % 32).astype(np.uint32))
        return out

    def beginning(self, with_: bytes) -> U32:
        """Mask of tokens that begin with these bytes."""
        first = bisect_left(self._sorted, with_)
        last = first
        while last < len(self._sorted) and self._sorted[last].startswith(with_):
            last += 1
        return self.mask(self._ids[first:last])

    def within(self, texts: Sequence[bytes]) -> list[int]:
        """Ids of tokens equal to one of `texts` or to a prefix of one."""
        out: list[int] = []
        for part in {t[:n] for t in texts for n in range(1, len(t) + 1)}:
            at = bisect_left(self._sorted, part)
            while at < len(self._sorted) and self._sorted[at] == part:
                out.append(int(self._ids[at]))
                at += 1
        return out

    def watch(self) -> JsonGuardState:
        return JsonGuardState(self)


class JsonGuardState:
    """The state of one text."""

    __slots__ = ("_digits", "_escaped", "_guard", "_key", "_keys", "_part", "_place", "_wants_key")

    def __init__(self, guard: JsonGuard) -> None:
        self._guard = guard
        self._keys: list[dict[str, bytes] | None] = []
        """Keys of the open objects, each with its spelling. None: an array."""
        self._place, self._escaped, self._wants_key = OUT, False, False
        self._key = bytearray()
        self._part, self._digits = WHOLE, 0
        """The current number's part, and its digits that count in that part."""

    @property
    def guard(self) -> JsonGuard:
        return self._guard

    @property
    def place(self) -> int:
        """KEY, STRING or OUT."""
        return self._place

    @property
    def wants_key(self) -> bool:
        """Must a key begin, or an object end?"""
        return self._wants_key

    @property
    def key(self) -> bytes:
        """The key's bytes so far. Valid in KEY."""
        return bytes(self._key)

    @property
    def known_key(self) -> bytes:
        """The key's bytes so far, unescaped where possible, without an incomplete escape."""
        return _respelt(bytes(self._key)[: len(self._key) - len(self._half_escape)])

    @property
    def in_escape(self) -> bool:
        """Is the key within an incomplete escape? Valid in KEY."""
        return bool(self._half_escape)

    @property
    def _half_escape(self) -> bytes:
        found = _HALF_ESCAPE.search(self._key) if _ESCAPE in self._key else None
        return bytes(found[1]) if found is not None else b""

    def keys_used(self) -> list[bytes]:
        """The spellings of the keys of the innermost object."""
        return list((self._keys[-1] or {}).values()) if self._keys else []

    def copy(self) -> JsonGuardState:
        new = JsonGuardState(self._guard)
        new._keys = [None if k is None else dict(k) for k in self._keys]
        new._place, new._escaped, new._wants_key = self._place, self._escaped, self._wants_key
        new._key, new._part, new._digits = bytearray(self._key), self._part, self._digits
        return new

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if 0 <= token < len(self._guard.tokens):
                self._read(self._guard.tokens[token])

    def _read(self, text: bytes) -> bool:
        """Advance by these bytes. False: an object's key was repeated."""
        fresh = True
        for byte in text:
            if self._place != OUT:
                fresh &= self._in_string(byte)
            else:
                self._outside(byte)
        return fresh

    def _in_string(self, byte: int) -> bool:
        if self._escaped:
            self._escaped = False
        elif byte == _ESCAPE:
            self._escaped = True
        elif byte == _QUOTE:
            is_key, self._place = self._place == KEY, OUT
            return self._end_key() if is_key else True
        if self._place == KEY:
            self._key.append(byte)
        return True

    def _end_key(self) -> bool:
        keys, name = self._keys[-1], _decode_key(bytes(self._key))
        assert keys is not None
        fresh = name not in keys
        keys[name] = _spelt(name)
        return fresh

    def _outside(self, byte: int) -> None:
        self._number(byte)
        if byte == _QUOTE:
            self._place = KEY if self._wants_key else STRING
            self._key.clear()
            self._wants_key = False
        elif byte == ord("{"):
            self._keys.append({})
            self._wants_key = True
        elif byte == ord("["):
            self._keys.append(None)
            self._wants_key = False
        elif byte in b"]}" and self._keys:
            self._keys.pop()
            self._wants_key = False
        elif byte == ord(","):
            self._wants_key = bool(self._keys) and self._keys[-1] is not None

    def _number(self, byte: int) -> None:
        if byte in _DIGITS:
            self._digits += 1
        elif byte == ord(".") and self._digits:
            self._part = FRACTION
        elif byte in b"eE" and self._digits:
            self._part, self._digits = EXPONENT, 0
        elif not (byte in _SIGNS and self._part == EXPONENT):
            self._part, self._digits = WHOLE, 0

    def narrow(self, words: U32) -> None:
        """Remove tokens from a mask that would repeat a key, or extend a number beyond its limit. GrammarError if no token
        remains: every text would repeat a key."""
        guard = self._guard
        if self._place == OUT:
            left = max(MOST_DIGITS[self._part] - self._digits, 0)
            if left < len(guard.longer):
                _prefer_without(words, guard.longer[left])
            if self._digits:
                _prefer_without(words, guard.huge)
        tried, tried_mask = guard.keys, guard.keys_mask
        if self._place == KEY:
            used, here = self._keys[-1] or {}, self.known_key
            if self.in_escape and used:
                # A control character has two spellings: the key is known only once the token completes the escape.
                tried, tried_mask = guard.quoted, guard.quoted_mask
            else:
                for spelt in used.values():
                    if spelt.startswith(here):
                        words &= ~guard.beginning(spelt[len(here) :] + b'"')
                if _decode_key(bytes(self._key)) in used:
                    words &= ~guard.beginning(b'"')
        self._try_keys(words, tried, tried_mask)
        if not words.any():
            raise GrammarError(USED_UP)

    def prefer_plain(self, words: U32) -> None:
        """Within a key, remove tokens with escapes from a mask if others remain. Keys are written plainly where the schema
        permits."""
        if self._place == KEY:
            _prefer_without(words, self._guard.escapes)

    def _try_keys(self, words: U32, tried: Sequence[int], tried_mask: U32) -> None:
        """Remove from a mask those of `tried` that repeat a key. Each token is read to its end."""
        if not (words & tried_mask).any():
            return
        bad = [i for i in tried if words[i // 32] >> np.uint32(i % 32) & 1 and not self.copy()._read(self._guard.tokens[i])]
        if bad:
            words &= ~self._guard.mask(bad)


def _prefer_without(words: U32, taken: U32) -> None:
    left = words & ~taken
    if left.any():
        words[:] = left


def _decode_key(key: bytes) -> str:
    text = key.decode("utf-8", "surrogateescape")
    if "\\" not in text:
        return text
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text


def _spelt(name: str) -> bytes:
    """A key with only the necessary escapes."""
    return json.dumps(name, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass")


def _respelt(key: bytes) -> bytes:
    """A key or its beginning with each escape as `_spelt` writes it. Incomplete escapes are not allowed."""
    if _ESCAPE not in key:
        return key
    return _ESCAPED.sub(lambda found: _spelt(_decode_key(found[0])), key)
