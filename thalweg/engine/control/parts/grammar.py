"""Sequences that follow a grammar. Each has a matcher while it has a slot, rebuilt from its tokens when it enters one.

Where every token is known when a step is made, its mask is there. Else the next token may be sampled without a mask, ahead of
time. If the grammar forbids it, it is rolled back and sampled again with its mask (`Slots.hopes`). The result is the token
that a mask from the start would have given. A sequence with rejected tokens waits for its last token, longer each time.

Drafts have a mask each, made by a copy of the matcher that runs ahead. Where a mask allows only one token, that token is
forced and is no guess (`certain`).

Other fields that forbid tokens are applied here too, token by token: bad words, allowed_token_ids, and stop ids up to
min_tokens. Where a grammar and those leave nothing, the grammar counts: there is no other way to go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from thalweg.engine.control.invariant import ensure
from thalweg.engine.control.request import Request
from thalweg.engine.control.slots import Slots
from thalweg.grammar.source import GrammarError, TokenRejectedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.grammar.budget import TokenMatcher
    from thalweg.grammar.grammars import Grammars

    U32 = NDArray[np.uint32]

ALL = np.uint32(0xFFFFFFFF)
MOST_FAILURES = 5
"""The cap of `failures`."""


@dataclass(slots=True)
class _MatcherState:
    request: Request
    matcher: TokenMatcher
    fed: int
    """Tokens of the sequence, prompt included, that the matcher knows."""
    patience: int = 0
    """Tokens that it still waits for."""
    failures: int = 0
    """Consecutive failures, about."""
    ahead: list[U32] = field(default_factory=list)
    """The masks of the next tokens, made when those were drafted."""
    ahead_of: int = 0
    """The number of tokens known then."""


class GrammarMatchers:
    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._at: dict[int, _MatcherState] = {}
        self._failed: list[tuple[Request, str]] = []

    def enter(self, slot: int, request: Request) -> None:
        assert self._grammars is not None, "a request with a grammar was refused at the door"
        assert request.sampling.grammar is not None
        self._at[slot] = _MatcherState(request, self._grammars.follower(request.sampling.grammar), request.prompt_len)

    def leave(self, slot: int) -> None:
        self._at.pop(slot, None)

    def take_failures(self) -> list[tuple[Request, str]]:
        out, self._failed = self._failed, []
        return out

    def fill(self, state: Slots, request: Request, rows: Sequence[U32]) -> None:
        """The mask of the next token of a sequence. One that fails gets every token, and an end with a reason. Several rows:
        those after each of its drafts, after a call of `certain` or `follows`."""
        follower = self._at[request.slot]
        if follower.patience:
            follower.patience -= 1
            state.hopes[request.slot] = not follower.patience
        result = follower.ahead if follower.ahead_of == state.known[request.slot] else []
        if len(rows) == 1 and not result:
            self._mask(state, follower, rows[0])
            return
        ensure(len(rows) <= len(result), "drafts without masks")
        for words, mask in zip(rows, result, strict=False):
            words[:] = mask

    def certain(self, state: Slots, request: Request, most: int, words: int) -> list[int]:
        """The next tokens, as long as the masks allow only one."""
        out: list[int] = []
        for mask in self._masks(state, self._at[request.slot], out, words):
            found = np.flatnonzero(mask)
            word = int(mask[found[0]]) if found.size == 1 and len(out) < most else 0
            if word.bit_count() != 1:
                break
            out.append(32 * int(found[0]) + word.bit_length() - 1)
        return out[: max(len(self._at[request.slot].ahead) - 1, 0)]

    def follows(self, state: Slots, request: Request, drafts: Sequence[int], words: int) -> int:
        """How many of these the masks allow, in sequence."""
        given: list[int] = []
        for mask, token in zip(self._masks(state, self._at[request.slot], given, words), drafts, strict=False):
            if not _allows(mask, token):
                break
            given.append(token)
        return min(len(given), max(len(self._at[request.slot].ahead) - 1, 0))

    def _masks(self, state: Slots, follower: _MatcherState, given: list[int], words: int) -> Iterator[U32]:
        """The mask of the next token, and of each token after those appended to `given` meanwhile. It stops where one cannot
        be made: if that is the first, `fill` reports the reason."""
        known, request, matcher = int(state.known[follower.request.slot]), follower.request, follower.matcher
        line = state.tokens[request.slot, :known]
        follower.ahead, follower.ahead_of = [], known
        while True:
            mask = np.zeros(words, np.uint32)
            try:
                if not follower.ahead:
                    self._catch_up(state, follower)
                else:
                    # The sequence's matcher makes the first mask, because it caches its work.
                    matcher = follower.matcher.copy() if matcher is follower.matcher else matcher
                    matcher.accept(given[-1:])
                    line = np.append(line, np.int32(given[-1]))
                matcher.mask(mask)
            except GrammarError:
                return
            _narrow(request, line, mask)
            follower.ahead.append(mask)
            before = len(given)
            yield mask
            if len(given) == before:
                return

    def forces(self, state: Slots, request: Request) -> bool:
        """Are the next two tokens forced, as far as is known without their masks?"""
        follower = self._at[request.slot]
        try:
            self._catch_up(state, follower)
            return len(follower.matcher.forced_tokens()) > 1
        except GrammarError:
            return False

    def refuses(self, state: Slots, request: Request, token: int, words: int) -> bool:
        """Does the mask of the next token, which was sampled without it, forbid it?"""
        follower = self._at[request.slot]
        mask = np.zeros(words, np.uint32)
        if not self._mask(state, follower, mask):
            return True
        if _allows(mask, token):
            follower.failures = max(follower.failures - 1, 0)
            return False
        follower.failures = min(follower.failures + 1, MOST_FAILURES)
        follower.patience = 1 << follower.failures
        state.hopes[request.slot] = False
        return True

    def _mask(self, state: Slots, follower: _MatcherState, words: U32) -> bool:
        """Fill the mask. False: it fails."""
        request = follower.request
        try:
            self._catch_up(state, follower)
            follower.matcher.mask(words)
        except GrammarError as e:
            words[:] = ALL
            why = f"the engine's own fault: {e}" if isinstance(e, TokenRejectedError) else f"structured_outputs: {e}"
            self._failed.append((request, why))
            return False
        _narrow(request, state.tokens[request.slot, : follower.fed], words)
        return True

    @staticmethod
    def _catch_up(state: Slots, follower: _MatcherState) -> None:
        """Feed the matcher the sequence's new tokens. GrammarError."""
        slot = follower.request.slot
        known = int(state.known[slot])
        follower.matcher.accept(state.tokens[slot, follower.fed : known].tolist())
        follower.fed = known


def _narrow(request: Request, tokens: NDArray[np.int32], words: U32) -> None:
    """Apply other fields that forbid tokens: allowed_token_ids first, then bad words, then stops up to min_tokens."""
    p = request.sampling
    if p.allowed_ids:
        _prefer(words, _bits(p.allowed_ids, words.size))
    bad = [w[-1] for w in p.bad_words if len(w) == 1 or _ends(tokens, w[:-1])]
    if bad:
        _prefer(words, ~_bits(bad, words.size))
    if tokens.size - request.prompt_len < p.min_tokens:
        _prefer(words, ~_bits((*p.eos_ids, *p.stop_ids), words.size))


def _allows(words: U32, token: int) -> bool:
    return bool(words[token // 32] >> np.uint32(token % 32) & 1)


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
