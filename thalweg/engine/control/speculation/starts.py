"""At which token of an answer do drafts begin to pay? Many answers are short, and their drafts are lost.

Where a proposer may begin at any token, its first drafts cost time that later steps earn back. Lengths of recent answers and
measured seconds give the first token after which drafts had cost the least, over all of these answers. The text never depends
on it. The caller passes times in; this module reads no clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

KEPT = 128
"""Answers whose lengths are kept."""
EVERY = 8
"""Answers between two choices."""
FIRST = 4
"""The token of an answer after which drafts begin, while nothing is measured."""
WORTH = 0.97
"""Drafts are used if all answers together take less than this share of their time without."""
AFRESH = 16
"""Choices after which drafts begin at FIRST again, to be measured."""
CANDIDATES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of steps with the same number of streams, and tokens of each stream."""

    plain: float
    """A step without drafts."""
    proposing: float
    """One that verifies no drafts and proposes some: how much longer it is."""
    verifying: float
    """One that verifies drafts and proposes some."""
    tokens: float
    """Tokens of a stream in the latter."""


class Starts:
    def __init__(self) -> None:
        self.first = FIRST
        """Drafts follow this token of an answer, at the earliest."""
        self._lengths: deque[int] = deque(maxlen=KEPT)
        self._new = self._choices = 0

    def finish(self, tokens: int) -> bool:
        """Record an answer of so many tokens. Returns whether it is time to `choose` again."""
        self._lengths.append(tokens)
        self._new += 1
        return self._new >= EVERY

    def choose(self, times: StepTimes) -> None:
        """Set `first`. One beyond all lengths means no drafts."""
        self._new, self._choices = 0, self._choices + 1
        never = max(self._lengths, default=0) + 1
        best = min(CANDIDATES, key=lambda first: self._seconds(first, times))
        self.first = best if self._seconds(best, times) < WORTH * self._seconds(never, times) else never
        if self.first == never and self._choices % AFRESH == 0:
            self.first = FIRST

    def _seconds(self, first: int, times: StepTimes) -> float:
        """Of all recent answers behind their prompts, if drafts follow token `first`."""
        total = 0.0
        for tokens in self._lengths:
            total += (min(tokens, first) - 1) * times.plain
            if tokens >= first:
                total += times.proposing
            if tokens > first:
                total += max(1.0, (tokens - first) / times.tokens) * times.verifying
        return total
