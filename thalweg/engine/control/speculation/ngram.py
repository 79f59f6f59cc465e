"""Drafts from a sequence's earlier tokens: the continuation of the last occurrence of its last few tokens (prompt lookup).

The longest n-gram at the end of a sequence, of `lookup_max` to `lookup_min` tokens, is looked up among all earlier ones. The
latest occurrence counts. Its continuation is copied. Where the copy reaches the end of the sequence it continues with copied
tokens, so a loop of any length is followed. Prompts are indexed once, as sorted hashes; a collision costs a wrong draft.

A sequence has one draft more than were right last time, twice as many when all were. After two or more proposals in a row
without a right draft it has none for a while, longer each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from thalweg.drafters import DrafterOption, SpeculationConfig, whole
from thalweg.engine.control.speculation.drafter import Drafter, Proposals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.engine.control.slots import Slots

    I32 = NDArray[np.int32]
    U64 = NDArray[np.uint64]

FACTOR, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
LOOKUP, LONGEST_LOOKUP = 5, 64
"""Tokens looked up by default, and at most."""
LONGEST_REST = 64
"""Most tokens for which a sequence without accepted drafts has none."""


class NGramDrafter(Drafter):
    options: ClassVar[Mapping[str, DrafterOption]] = {
        "prompt_lookup_min": DrafterOption(whole(1, LONGEST_LOOKUP)),
        "prompt_lookup_max": DrafterOption(whole(1, LONGEST_LOOKUP)),
    }

    @classmethod
    def settle(cls, options: dict[str, Any]) -> dict[str, Any]:
        """If one is missing it equals the other. If both are, LOOKUP."""
        low, high = options["prompt_lookup_min"], options["prompt_lookup_max"]
        low = (high or LOOKUP) if low is None else low
        high = low if high is None else high
        if low > high:
            raise ValueError(f"prompt_lookup_min {low} exceeds prompt_lookup_max {high}")
        return {"prompt_lookup_min": low, "prompt_lookup_max": high}

    def __init__(self, config: SpeculationConfig, slots: Slots) -> None:
        super().__init__(config, slots)
        self._sizes = range(config.options["prompt_lookup_max"], config.options["prompt_lookup_min"] - 1, -1)
        self._indexes: dict[int, tuple[int, _Index]] = {}
        """Per slot: of which serial, and the index."""

    def propose(self, slots: I32, most: I32) -> Proposals:
        return Proposals.of([self._follow(slot, n) for slot, n in zip(slots.tolist(), most.tolist(), strict=True)])

    def _follow(self, slot: int, most: int) -> list[int]:
        known, row, index = int(self._slots.known[slot]), self._slots.tokens[slot], self._index(slot)
        begin, most = index.continuation(row, known), min(most, index.width)
        if begin < 0:
            return []
        drafts: list[int] = row[begin : min(begin + most, known)].tolist()
        while len(drafts) < most:
            drafts.append(drafts[begin - known])
        return drafts

    def is_promising(self, slots: I32) -> NDArray[np.bool_]:
        """If the known tokens have been seen before, so will those in flight have been."""
        s = self._slots
        seen = (self._index(n).continuation(s.tokens[n], int(s.known[n])) >= 0 for n in slots.tolist())
        return np.fromiter(seen, np.bool_, slots.size)

    def learn(self, slots: I32, accepted: I32) -> None:
        for slot, n in zip(slots.tolist(), accepted.tolist(), strict=True):
            self._index(slot).learn(int(self._slots.known[slot]), n, self.most)

    def _index(self, slot: int) -> _Index:
        serial, (of, index) = int(self._slots.serial[slot]), self._indexes.get(slot, (0, None))
        if index is None or of != serial:
            index = _Index(self._slots.tokens[slot, : self._slots.known[slot]], self._sizes)
            self._indexes[slot] = serial, index
        return index


class _Index:
    """Where each n-gram of one sequence was seen last: the position after it."""

    __slots__ = ("_end", "_misses", "_old", "_recent", "_rests_until", "_sizes", "width")

    def __init__(self, tokens: I32, sizes: range) -> None:
        """sizes: the largest first."""
        self._sizes = sizes
        self._old = {n: _sort_ngrams(tokens, n) for n in sizes}
        self._recent: dict[tuple[int, ...], int] = {}
        self._end = tokens.size
        """N-grams that end before it are indexed."""
        self._misses = self._rests_until = 0
        self.width = 2
        """Drafts of the next proposal, at most."""

    def continuation(self, row: I32, known: int) -> int:
        """The position after the last occurrence of the tokens before `known`; -1: none."""
        if known < self._rests_until:
            return -1
        begin = max(0, self._end - self._sizes[0])
        tail: list[int] = row[begin:known].tolist()
        for end in range(self._end, known):
            for n in self._sizes:
                if n <= end:
                    self._recent[tuple(tail[end - n - begin : end - begin])] = end
        self._end = max(self._end, known)
        for n in self._sizes:
            if n < known:
                gram = tuple(row[known - n : known].tolist())
                at = self._recent.get(gram, -1)
                at = _last(self._old[n], gram) if at < 0 else at
                if at >= 0:
                    return at
        return -1

    def learn(self, known: int, accepted: int, most: int) -> None:
        self.width = min(most, 2 * self.width if accepted >= self.width else accepted + 1)
        self._misses = 0 if accepted else self._misses + 1
        if self._misses > 1:
            self._rests_until = known + min(1 << self._misses, LONGEST_REST)


def _sort_ngrams(tokens: I32, n: int) -> tuple[U64, I32]:
    """Hashes of the n-grams that end before the last token, in order, and the positions after them; of equal ones the
    later position is last."""
    count = max(0, tokens.size - n)
    hashes = np.zeros(count, np.uint64)
    for i in range(n):
        hashes = hashes * np.uint64(FACTOR) + tokens[i : i + count].astype(np.uint64) + np.uint64(1)
    order = np.argsort(hashes, kind="stable")
    return hashes[order], (order + n).astype(np.int32)


def _last(old: tuple[U64, I32], gram: tuple[int, ...]) -> int:
    hashes, positions = old
    key = 0
    for token in gram:
        key = (key * FACTOR + token + 1) & MASK
    at = int(np.searchsorted(hashes, np.uint64(key), side="right")) - 1
    return int(positions[at]) if at >= 0 and int(hashes[at]) == key else -1
