"""At which token of an answer do drafts begin to pay? Many answers are short, and their drafts are lost.

Where a proposer may begin at any token, its first drafts cost time that later steps earn back. Lengths of recent answers and
measured seconds give the token after which drafts should begin, by the geometric mean over these answers. The text does not
depend on it. The caller passes times in; this module reads no clock.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

KEPT = 128
"""Answers whose lengths are kept."""
EVERY = 8
"""Answers between two choices."""
FIRST = 4
"""The token of an answer after which drafts begin, while nothing is measured."""
WORTH = 0.97
"""Drafts are used if the mean answer takes less than this share of its time without."""
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
        best = min(CANDIDATES, key=lambda first: self._loss(first, times))
        self.first = best if self._loss(best, times) < math.log(WORTH) * len(self._lengths) else never
        if self.first == never and self._choices % AFRESH == 0:
            self.first = FIRST

    def _loss(self, first: int, times: StepTimes) -> float:
        """The sum over recent answers of log(time / time without drafts), if drafts follow token `first`. As in `gain`, one
        answer twice as fast is worth another at half its speed. A prompt counts as one plain step."""
        total = 0.0
        for tokens in self._lengths:
            seconds = min(tokens, first) * times.plain
            if tokens >= first:
                seconds += times.proposing
            if tokens > first:
                seconds += max(1.0, (tokens - first) / times.tokens) * times.verifying
            total += math.log(seconds / (tokens * times.plain))
        return total
