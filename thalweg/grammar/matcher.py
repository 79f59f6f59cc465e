"""One sequence followed by a grammar: which tokens may come next. Its state is a function of the tokens it was given."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from thalweg.grammar.compiled import exceeds, words_of
from thalweg.grammar.guard import JsonGuard
from thalweg.grammar.keys import leave_fresh
from thalweg.grammar.source import GrammarError, GrammarSource, TokenRejectedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.grammar.compiled import Compiled

ALL = np.uint32(0xFFFFFFFF)


class Matcher:
    """At the start of a text when made. Words of masks: u32, bit t % 32 of word t // 32 is token t."""

    def __init__(self, inner: Compiled, source: GrammarSource, guard: JsonGuard) -> None:
        """inner: the compiled grammar at its start, this one's own. guard: of the same vocabulary."""
        self._inner = inner
        self._until = frozenset(source.free_until)
        self._free = bool(self._until)
        self.watch = guard.watch() if source.json else None
        """What was written so far, if it is JSON."""
        self._few_keys = source.few_keys and self.watch is not None

    @property
    def free(self) -> bool:
        """Is every token allowed, because the constrained part has not begun?"""
        return self._free

    @property
    def complete(self) -> bool:
        """May the text end here?"""
        return self._free or bool(self._inner.is_accepting())

    def accept(self, tokens: Sequence[int]) -> None:
        """The tokens that came. OutsideError if the grammar does not allow one, GrammarError if it became too complex. The
        matcher is of no use then."""
        for at, token in enumerate(tokens):
            if self._free:
                self._free = token not in self._until
                continue
            rest = list(tokens[at:])
            if not self._inner.consume_tokens(rest):
                kind = GrammarError if exceeds(self._inner.get_error()) else TokenRejectedError
                raise kind(self._error() or "a token outside the grammar")
            if self.watch is not None:
                self.watch.accept(rest)
            return

    def mask(self, words: NDArray[np.uint32]) -> None:
        """Which tokens may come next, written to u32[words]; those beyond the vocabulary may not. GrammarError if the grammar
        became too complex."""
        self.mask_once(words)
        if self.watch is None or self._free:
            return
        if self._few_keys:
            leave_fresh(self, words)
        else:
            self.watch.prefer_plain(words)

    def mask_once(self, words: NDArray[np.uint32]) -> None:
        """As `mask`, without a look at the keys that an object may still get. Keys may have escapes that they do not need."""
        if self._free:
            words[:] = ALL
            return
        found = np.frombuffer(self._inner.compute_bitmask(), np.uint32)
        if self._inner.is_error():
            raise GrammarError(self._error())
        size = min(found.size, words.size)  # the library may round up by a word
        words[:size], words[size:] = found[:size], 0
        if self.watch is not None:
            self.watch.narrow(words)

    def _error(self) -> str:
        found = self._inner.get_error()
        return words_of(found)[:300] if found else ""

    def forced_tokens(self) -> list[int]:
        """Tokens that must come next, as far as that is known."""
        return [] if self._free else list(self._inner.compute_ff_tokens())

    def copy(self) -> Matcher:
        """Another of the same text so far."""
        new = copy(self)
        new._inner = self._inner.deep_copy()
        new.watch = None if self.watch is None else self.watch.copy()
        return new
