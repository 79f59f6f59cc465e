"""Do drafts pay? Measured per number of streams: seconds for each stream to advance by one token, with drafts and without.

A step that verifies drafts is longer than one without: slightly where weights come from memory, much where arithmetic is the
limit. It may yield more tokens. Both are measured, and while steps with drafts are worse there are none for a while, longer
each time. The text never depends on it. The caller passes times in; this module reads no clock.

Tokens of a step are the geometric mean over its streams, times the share of all streams in the step, as some may sit out: one
stream twice as fast is worth another at half its speed, and no more. By the sum of tokens a few streams that repeat
themselves would hold up all others.

Seconds are medians: the first steps of a new width are recorded, captured or compiled, and are many times as long.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRIAL = 4
"""Steps with drafts before they are judged."""
PLAIN = 3
"""Steps without drafts to compare with."""
AGAIN = 256
"""Steps with drafts after which those without are measured again."""
SHORTEST_REST, LONGEST_REST = 64, 1024
"""Steps without drafts before they are tried again."""


@dataclass(slots=True)
class _Streams:
    """Measurements for about so many streams."""

    plain: deque[float] = field(default_factory=lambda: deque(maxlen=PLAIN + 4))
    """Seconds of the last steps without drafts."""
    drafted: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=2 * TRIAL))
    """Seconds, and tokens per stream, of the last steps with drafts."""
    steps: int = 0
    """Steps with drafts since those without were measured."""
    rest: int = 0
    """Steps without drafts still to come."""
    next_rest: int = SHORTEST_REST


class Gain:
    def __init__(self) -> None:
        self._of: dict[int, _Streams] = {}

    def _streams(self, streams: int) -> _Streams:
        return self._of.setdefault(streams.bit_length(), _Streams())

    def allows(self, streams: int) -> bool:
        """May the next step have drafts, with that many streams?"""
        return self._streams(streams).rest <= 0

    def observe(self, streams: int, counts: NDArray[np.int64] | None, seconds: float) -> None:
        """Record a step with that many streams and no prompt. counts: tokens of each stream that got any. None: the step had
        no drafts, and no stream sat out."""
        if seconds <= 0 or not streams or (counts is not None and not counts.size):
            return
        s = self._streams(streams)
        if counts is None:
            s.plain.append(seconds)
            s.rest -= 1
            if s.rest == 0:
                self._judge(s)
            return
        s.drafted.append((seconds, float(np.exp(np.log(counts).mean())) * counts.size / streams))
        s.steps += 1
        if len(s.drafted) >= TRIAL and s.rest <= 0:
            if len(s.plain) < PLAIN or s.steps >= AGAIN:
                s.rest, s.steps = PLAIN, 0
            else:
                self._judge(s)

    @staticmethod
    def _judge(s: _Streams) -> None:
        """Are steps with drafts slower? Then rest, and forget them: the text after the rest may be different."""
        if len(s.drafted) < TRIAL or len(s.plain) < PLAIN:
            return
        seconds, tokens = zip(*s.drafted, strict=True)
        with_drafts = median_low(seconds) / (sum(tokens) / len(tokens))
        if with_drafts > median(s.plain):
            s.rest, s.next_rest = s.next_rest, min(2 * s.next_rest, LONGEST_REST)
            s.drafted.clear()
        elif s.steps >= 4 * TRIAL:
            s.next_rest = SHORTEST_REST
