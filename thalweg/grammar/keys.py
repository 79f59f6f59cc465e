"""Prevents dead ends in objects with keys of a pattern: tokens after which the object already has every possible key.

A grammar does not track used keys. Where a pattern matches few keys, its mask may lead to a state without a fresh key. Every
token that could lead there is therefore tried, through the letters of used keys only: any other letter makes a fresh key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from thalweg.grammar.guard import KEY, OUT, USED_UP, JsonGuardState
from thalweg.grammar.source import GrammarError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.grammar.matcher import Matcher

    U32 = NDArray[np.uint32]

ALL = np.uint32(0xFFFFFFFF)


def leave_fresh(matcher: Matcher, words: U32) -> None:
    """Remove tokens from a mask after which an object needs a key and none is left. GrammarError if no token remains."""
    watch = matcher.watch
    assert watch is not None
    guard = watch.guard
    known: dict[bytes, bool] = {}
    # Escapes are removed unless every fresh key needs one.
    plain = words & ~guard.escapes if watch.place == KEY else words.copy()
    if plain.any():
        _leave_fresh(matcher, plain, known)
        if plain.any():
            words[:] = plain
            return
    _leave_fresh(matcher, words, known)
    if not words.any():
        raise GrammarError(USED_UP)


def _leave_fresh(matcher: Matcher, words: U32, known: dict[bytes, bool]) -> None:
    """Remove tokens from a mask that lead to no fresh key."""
    watch = matcher.watch
    assert watch is not None
    guard = watch.guard
    doubtful = words & (guard.openers if watch.place == OUT else guard.openers_quoted)
    if watch.place == KEY:
        doubtful |= words & _uncertain(watch)
    elif watch.wants_key:
        doubtful |= words & guard.begins_key
    bad = [t for t in _ids(doubtful) if not _goes_on(matcher, t, known)]
    if bad:
        words &= ~guard.mask(bad)


def _ids(words: U32) -> list[int]:
    return [int(i) for i in np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))]


def _uncertain(watch: JsonGuardState) -> U32:
    """Mask of tokens within a key that may continue like a used key, without ending it. Any other makes a fresh key.

    A letter may be spelled as an escape, so tokens with escapes are included."""
    used = watch.keys_used()
    if watch.in_escape:
        return np.full(watch.guard.words, ALL, np.uint32) if used else watch.guard.mask([])
    here = watch.known_key
    rests = [k[len(here) :] for k in used if k.startswith(here)]
    inside = watch.guard.mask(watch.guard.within(rests))
    return inside | watch.guard.escapes if rests else inside


def _goes_on(matcher: Matcher, token: int, known: dict[bytes, bool]) -> bool:
    """Is a fresh key possible after this token? True if the token needs no key."""
    assert matcher.watch is not None
    after = matcher.watch.copy()
    after.accept([token])
    if not _in_doubt(after):
        return True
    other = matcher.copy()
    try:
        other.accept([token])
    except GrammarError:
        return False
    same_object = matcher.watch.place == KEY and after.place == KEY and after.key.startswith(matcher.watch.key)
    return _fresh(other, known if same_object else {})


def _in_doubt(watch: JsonGuardState) -> bool:
    """Does an object need a key that may still become a used one?"""
    if watch.place == KEY:
        here = watch.known_key
        return any(k.startswith(here) for k in watch.keys_used())
    return watch.wants_key and bool(watch.keys_used())


def _fresh(matcher: Matcher, known: dict[bytes, bool]) -> bool:
    """Is a fresh key possible where the object needs a key? known: results by the key's bytes so far."""
    watch = matcher.watch
    assert watch is not None
    if watch.place != KEY:
        return _fresh_from_quote(matcher)
    here = watch.key
    if here not in known:
        known[here] = _has_way(matcher, known)
    return known[here]


def _has_way(matcher: Matcher, known: dict[bytes, bool]) -> bool:
    watch = matcher.watch
    assert watch is not None
    words = np.zeros(watch.guard.words, np.uint32)
    try:
        matcher.mask_once(words)
    except GrammarError:
        return False
    uncertain = _uncertain(watch)
    if (words & ~uncertain).any():
        return True
    return any(_goes_on(matcher, t, known) for t in _ids(words & uncertain))


def _fresh_from_quote(matcher: Matcher) -> bool:
    watch = matcher.watch
    assert watch is not None
    words = np.zeros(watch.guard.words, np.uint32)
    try:
        matcher.mask_once(words)
    except GrammarError:
        return False
    quoted = _ids(words & watch.guard.begins_key)
    # The quote token, if there is one, leads to every key. Otherwise longer tokens are tried.
    return any(_goes_on(matcher, t, {}) for t in ([watch.guard.quote] if watch.guard.quote in quoted else quoted))
