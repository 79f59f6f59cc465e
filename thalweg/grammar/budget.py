"""A token limit for reasoning: at the limit, the tokens that end reasoning are forced. A grammar may constrain the rest."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Protocol

import numpy as np

from thalweg.grammar.source import Budget

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALL = np.uint32(0xFFFFFFFF)


class TokenMatcher(Protocol):
    """Gives the tokens allowed next in one sequence. Its state is a function of the accepted tokens."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance by the sampled tokens. GrammarError."""

    def mask(self, words: NDArray[np.uint32]) -> None:
        """Write the mask of allowed tokens to u32[words]: bit t % 32 of word t // 32 is token t. GrammarError."""

    def forced_tokens(self) -> list[int]:
        """The forced next tokens, as far as they are cheap to know."""

    def copy(self) -> TokenMatcher:
        """An independent matcher after the same tokens."""


class BudgetMatcher:
    """Limits reasoning to `budget.most` tokens in all, wherever it begins and ends. Other text is free, or constrained by
    `inner`."""

    def __init__(self, budget: Budget, inner: TokenMatcher | None) -> None:
        self._budget, self._inner = budget, inner
        self._inside, self._used = budget.begun >= 0, max(0, budget.begun)
        self._at = 0
        """Number of closing tokens forced so far."""
        self._last: list[int] = []

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._step(token)
        if self._inner is not None:
            self._inner.accept(tokens)

    def _step(self, token: int) -> None:
        budget = self._budget
        if self._due:
            self._at += 1
            if self._at == len(budget.forced):
                self._inside, self._at = False, 0
                self._last.clear()
            return
        longest = max(len(budget.open), len(budget.close))
        self._last = [*self._last, token][-longest:]
        if self._inside:
            self._used += 1
            self._inside = not self._ends_with(budget.close)
        else:
            self._inside = self._ends_with(budget.open)

    def _ends_with(self, with_: tuple[int, ...]) -> bool:
        return tuple(self._last[-len(with_) :]) == with_

    @property
    def _due(self) -> bool:
        """Must reasoning end now?"""
        return self._inside and self._used >= self._budget.most

    def forced_tokens(self) -> list[int]:
        if self._due:
            return list(self._budget.forced[self._at :])
        return self._inner.forced_tokens() if self._inner is not None else []

    def copy(self) -> BudgetMatcher:
        new = copy(self)
        new._last, new._inner = list(self._last), None if self._inner is None else self._inner.copy()
        return new

    def mask(self, words: NDArray[np.uint32]) -> None:
        if self._due:
            token = self._budget.forced[self._at]
            words[:] = 0
            words[token // 32] = np.uint32(1) << np.uint32(token % 32)
        elif self._inner is not None:
            self._inner.mask(words)
        else:
            words[:] = ALL
