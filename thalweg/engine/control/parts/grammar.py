"""Sequences that follow a grammar. Each has a matcher while it has a slot, made anew from its tokens when it enters one.

Where every token is known when a step is made, its mask is there. Else the next token may be drawn without one, ahead of its
time. If the grammar forbids it, it is taken back and drawn again with its mask (`Slots.hopes`). The result is the token that
a mask from the first would have given. A sequence whose hopes fail waits for its last token, longer each time.

What else forbids tokens is done here too, token by token: bad words, allowed_token_ids, and stop ids up to min_tokens. Where a
grammar and those leave nothing, the grammar counts: there is no other way to go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from thalweg.engine.control.request import Request
from thalweg.engine.control.slots import Slots
from thalweg.grammar.source import GrammarError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.grammar.budget import Follows
    from thalweg.grammar.grammars import Grammars

    U32 = NDArray[np.uint32]

ALL = np.uint32(0xFFFFFFFF)
MOST_FAILURES = 5
"""That count."""


@dataclass(slots=True)
class _Follower:
    request: Request
    matcher: Follows
    fed: int
    """Tokens of the sequence, prompt included, that the matcher knows."""
    patience: int = 0
    """Tokens that it still waits for."""
    failures: int = 0
    """In a row, about."""


class Followers:
    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._at: dict[int, _Follower] = {}
        self._failed: list[tuple[Request, str]] = []

    def enter(self, slot: int, request: Request) -> None:
        assert self._grammars is not None, "a request with a grammar was refused at the door"
        assert request.sampling.grammar is not None
        self._at[slot] = _Follower(request, self._grammars.follower(request.sampling.grammar), request.prompt_len)

    def leave(self, slot: int) -> None:
        self._at.pop(slot, None)

    def failed(self) -> list[tuple[Request, str]]:
        out, self._failed = self._failed, []
        return out

    def fill(self, state: Slots, request: Request, words: U32) -> None:
        """The mask of the next token of a sequence. One that fails gets every token, and an end with a reason."""
        follower = self._at[request.slot]
        if follower.patience:
            follower.patience -= 1
            state.hopes[request.slot] = not follower.patience
        self._mask(state, follower, words)

    def refuses(self, state: Slots, request: Request, token: int, words: int) -> bool:
        """Does the mask of the next token, which was drawn without, forbid it?"""
        follower = self._at[request.slot]
        mask = np.zeros(words, np.uint32)
        if not self._mask(state, follower, mask):
            return True
        if mask[token // 32] >> np.uint32(token % 32) & 1:
            follower.failures = max(follower.failures - 1, 0)
            return False
        follower.failures = min(follower.failures + 1, MOST_FAILURES)
        follower.patience = 1 << follower.failures
        state.hopes[request.slot] = False
        return True

    def _mask(self, state: Slots, follower: _Follower, words: U32) -> bool:
        """False: it fails."""
        request = follower.request
        known = int(state.known[request.slot])
        tokens = state.tokens[request.slot]
        try:
            follower.matcher.accept(tokens[follower.fed : known].tolist())
            follower.fed = known
            follower.matcher.mask(words)
        except GrammarError as e:
            words[:] = ALL
            self._failed.append((request, f"structured_outputs: {e}"))
            return False
        _narrow(request, tokens[:known], words)
        return True


def _narrow(request: Request, tokens: NDArray[np.int32], words: U32) -> None:
    """What other fields forbid. allowed_token_ids first, then bad words, then stops up to min_tokens."""
    p = request.sampling
    if p.allowed_ids:
        _prefer(words, _bits(p.allowed_ids, words.size))
    bad = [w[-1] for w in p.bad_words if len(w) == 1 or _ends(tokens, w[:-1])]
    if bad:
        _prefer(words, ~_bits(bad, words.size))
    if tokens.size - request.prompt_len < p.min_tokens:
        _prefer(words, ~_bits((*p.eos_ids, *p.stop_ids), words.size))


def _ends(tokens: NDArray[np.int32], with_: tuple[int, ...]) -> bool:
    return tokens.size >= len(with_) and bool((tokens[tokens.size - len(with_) :] == with_).all())


def _prefer(words: U32, those: U32) -> None:
    left = words & those
    if left.any():
        words[:] = left


def _bits(ids: Iterable[int], size: int) -> U32:
    out = np.zeros(size, np.uint32)
    at = np.array([i for i in ids if i < 32 * size], np.int64)
    np.bitwise_or.at(out, at // 32, np.uint32(1) << (at % 32).astype(np.uint32))
    return out
