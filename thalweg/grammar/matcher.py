"""Follows one sequence with a grammar and gives the tokens allowed next. Its state is a function of the accepted tokens."""

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
    """Follows a text from its start. Masks are u32 words: bit t % 32 of word t // 32 is token t."""

    def __init__(self, inner: Compiled, source: GrammarSource, guard: JsonGuard) -> None:
        """inner: the compiled grammar at its start, not shared. guard: of the same vocabulary."""
        self._inner = inner
        self._until = frozenset(source.free_until)
        self._free = bool(self._until)
        self.watch = guard.watch() if source.json else None
        """State of the JSON text so far. None: not JSON."""
        self._few_keys = source.few_keys and self.watch is not None

    @property
    def free(self) -> bool:
        """Is every token allowed, as the constrained part has not begun?"""
        return self._free

    @property
    def complete(self) -> bool:
        """May the text end here?"""
        return self._free or bool(self._inner.is_accepting())

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance by the sampled tokens. TokenRejectedError if the grammar does not allow one, GrammarError if it became too
        complex. The matcher is unusable after either."""
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
        """Write the mask of allowed tokens to u32[words]. Tokens beyond the vocabulary are not allowed. GrammarError if the
        grammar became too complex."""
        self.mask_once(words)
        if self.watch is None or self._free:
            return
        if self._few_keys:
            leave_fresh(self, words)
        else:
            self.watch.prefer_plain(words)

    def mask_once(self, words: NDArray[np.uint32]) -> None:
        """As `mask`, without looking ahead for fresh keys. Keys may have unnecessary escapes."""
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
        """The forced next tokens, as far as known."""
        return [] if self._free else list(self._inner.compute_ff_tokens())

    def copy(self) -> Matcher:
        """An independent matcher after the same tokens."""
        new = copy(self)
        new._inner = self._inner.deep_copy()
        new.watch = None if self.watch is None else self.watch.copy()
        return new
