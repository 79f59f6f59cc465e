"""Objects whose keys must match a pattern: no comma and no letter of a key after which every key left is in the object already.

A grammar knows no keys that were used. Where a pattern matches few, a mask would lead to a place from which no fresh key can be
reached. So each token that could lead there is followed, through the letters of used keys only: any other letter makes a
fresh key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from thalweg.grammar.guard import KEY, OUT, Watch
from thalweg.grammar.source import GrammarError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.grammar.matcher import Matcher

    U32 = NDArray[np.uint32]

USED_UP = "every key that the grammar allows here is in the object already"


def leave_fresh(matcher: Matcher, words: U32) -> None:
    """Take out of a mask the tokens after which an object wants a key and none is left. GrammarError if no token remains."""
    watch = matcher.watch
    assert watch is not None
    guard = watch.guard
    doubtful = words & (guard.openers if watch.place == OUT else guard.openers_quoted)
    if watch.place == KEY:
        doubtful |= words & _inside(watch)
    elif watch.wants_key:
        doubtful |= words & guard.begins_key
    known: dict[bytes, bool] = {}
    bad = [t for t in _ids(doubtful) if not _goes_on(matcher, t, known)]
    if bad:
        words &= ~guard.mask(bad)
        if not words.any():
            raise GrammarError(USED_UP)


def _ids(words: U32) -> list[int]:
    return [int(i) for i in np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))]


def _inside(watch: Watch) -> U32:
    """The tokens that go on with the letters of a used key, and do not end it."""
    return watch.guard.mask(watch.guard.within([k[len(watch.key) :] for k in watch.used() if k.startswith(watch.key)]))


def _goes_on(matcher: Matcher, token: int, known: dict[bytes, bool]) -> bool:
    """Is there a fresh key after this token, if it leads to one?"""
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


def _in_doubt(watch: Watch) -> bool:
    """Does an object want a key, of which what is written is the beginning of a used one?"""
    if watch.place == KEY:
        return any(k.startswith(watch.key) for k in watch.used())
    return watch.wants_key and bool(watch.used())


def _fresh(matcher: Matcher, known: dict[bytes, bool]) -> bool:
    """May a key come that is not used? The object wants one. known: answers by what is written of the key."""
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
    inside = _inside(watch)
    if (words & ~inside).any():
        return True
    return any(_goes_on(matcher, t, known) for t in _ids(words & inside))


def _fresh_from_quote(matcher: Matcher) -> bool:
    watch = matcher.watch
    assert watch is not None
    words = np.zeros(watch.guard.words, np.uint32)
    try:
        matcher.mask_once(words)
    except GrammarError:
        return False
    quoted = _ids(words & watch.guard.begins_key)
    # A quote that is a token leads to every key. Longer tokens count where it is none.
    return any(_goes_on(matcher, t, {}) for t in ([watch.guard.quote] if watch.guard.quote in quoted else quoted))
