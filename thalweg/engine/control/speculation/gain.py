"""How many drafts pay? Measured per number of streams: seconds for each stream to advance by one token, with K drafts and
without.

A step that verifies drafts is longer than one without: slightly where weights come from memory, much where arithmetic is the
limit. It may yield more tokens. Both are measured for several K, and the K with the least seconds per token is used. While all
are worse than none there are no drafts for a while, longer each time. The text never depends on it. The caller passes times
in; this module reads no clock.

Tokens of a step are the geometric mean over its streams, times the share of all streams in the step, as some may sit out: one
stream twice as fast is worth another at half its speed, and no more. By the sum of tokens a few streams that repeat
themselves would hold up all others. Drafts are verified in order, so a step with K of them also shows the tokens of fewer.

Seconds are lower quartiles. The first steps of a new width are recorded, captured or compiled, and are many times as long, and
other programs interrupt a long step more often than a short one. Drafts have to gain more than such measurements err.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING

from thalweg.drafters import MOST_DRAFTS
from thalweg.engine.control.speculation.starts import StepTimes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TRIAL = 4
"""Steps with K drafts before they are judged."""
WINDOW = 32
"""Steps whose tokens are averaged: with one stream they differ much from step to step."""
PLAIN = 3
"""Steps without drafts to compare with."""
AGAIN = 256
"""Steps with drafts after which those without, and those with another K, are measured again."""
SHORTEST_REST, LONGEST_REST = 64, 1024
"""Steps without drafts before they are tried again."""
SWITCH = 0.97
"""Another K is used if its seconds per token are less than this share."""
WORTH = 0.95
"""Drafts are used if their seconds per token are less than this share of those without."""
_LOG = (0.0, *map(math.log, range(1, MOST_DRAFTS + 2)))
"""Logarithms of the tokens that a step may return of a sequence."""


def candidates(most: int) -> tuple[int, ...]:
    """The numbers of drafts that are tried, the largest first: those that steps are padded to."""
    return (most, *(k for k in (31, 15, 7, 3, 1) if k < most))


def count_runs(handles: NDArray[np.int64]) -> list[int]:
    """The length of each run of equal handles: tokens of each stream, as a step returns them."""
    return [len(list(run)) for _, run in groupby(handles.tolist())]


def typical(seconds: Collection[float]) -> float:
    """The lower quartile."""
    return sorted(seconds)[(len(seconds) - 1) // 4]


@dataclass(slots=True)
class _Streams:
    """Measurements for about so many streams."""

    best: int
    """Drafts of a sequence, where they pay."""
    plain: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Seconds of the last steps without drafts."""
    seconds: dict[int, deque[float]] = field(default_factory=dict)
    """Those of the last steps with K drafts, by K."""
    openings: dict[int, deque[float]] = field(default_factory=dict)
    """Seconds of steps that verify no drafts and propose K, by K, where the proposer may begin at any token."""
    tokens: dict[int, deque[float]] = field(default_factory=dict)
    """Tokens per stream of the last steps with drafts, were there at most K, by K."""
    trials: list[int] = field(default_factory=list)
    """Numbers of drafts still to measure, the next one last."""
    steps: int = 0
    """Steps with drafts since those without were measured."""
    rest: int = 0
    """Steps without drafts still to come."""
    next_rest: int = SHORTEST_REST
    turn: int = 0
    """Which other K is measured next."""


class Gain:
    def __init__(self, most: int = 1, bound: Callable[[int], int] | None = None) -> None:
        """most: drafts of a sequence in a step. bound: the same for a number of streams. None: `most`."""
        self._widths = candidates(most)
        self._bound = bound or (lambda streams: most)
        self._of: dict[int, _Streams] = {}

    def _streams(self, streams: int) -> _Streams:
        return self._of.setdefault(streams.bit_length(), _Streams(self._widths[0]))

    def allows(self, streams: int) -> bool:
        """May the next step have drafts, with that many streams?"""
        return self._streams(streams).rest <= 0 and self._bound(streams) > 0

    def choose(self, streams: int) -> int:
        """Drafts of a sequence in a step that may have some."""
        s = self._streams(streams)
        k = s.trials[-1] if s.trials and s.rest <= 0 else s.best
        return min(k, self._bound(streams) or k)

    def observe_opening(self, streams: int, seconds: float, width: int) -> None:
        """Record a step that verifies no drafts, has no prompt, and proposes `width`, of a proposer that may begin at any
        token."""
        if seconds > 0 and streams:
            self._streams(streams).openings.setdefault(width, deque(maxlen=2 * TRIAL)).append(seconds)

    def times(self, streams: int) -> StepTimes | None:
        """Those measured with that many streams and the best K. None: not all are."""
        s = self._streams(streams)
        seconds, tokens = s.seconds.get(s.best, ()), s.tokens.get(s.best, ())
        if len(s.plain) < PLAIN or len(seconds) < TRIAL or len(tokens) < TRIAL:
            return None
        plain, verifying, openings = typical(s.plain), typical(seconds), s.openings.get(s.best, ())
        more = typical(openings) - plain if len(openings) >= TRIAL else (verifying - plain) / 2
        return StepTimes(plain, max(0.0, more), verifying, fmean(tokens))

    def observe(self, streams: int, counts: Sequence[int] | None, seconds: float, width: int = 0) -> None:
        """Record a step with that many streams and no prompt. counts: tokens of each stream that got any. None: the step had
        no drafts, and no stream sat out. width: drafts that a sequence might have. 0: as many as ever."""
        if seconds <= 0 or not streams or (counts is not None and not len(counts)):
            return
        s = self._streams(streams)
        if counts is None:
            s.plain.append(seconds)
            s.rest -= 1
            if s.rest == 0:
                self._judge(s)
            return
        width = width or self._widths[0]
        s.seconds.setdefault(width, deque(maxlen=2 * TRIAL)).append(seconds)
        for k in {*self._widths, width}:
            if k <= width:
                kept = counts if k == width else [min(n, k + 1) for n in counts]
                got = math.exp(sum(map(_LOG.__getitem__, kept)) / len(counts)) * len(counts) / streams
                s.tokens.setdefault(k, deque(maxlen=WINDOW)).append(got)
        s.steps += 1
        if s.trials and width >= min(s.trials[-1], self._bound(streams)) and len(s.seconds[width]) >= TRIAL:
            s.trials.pop()
        if s.trials or len(s.seconds[width]) < TRIAL or s.rest > 0:
            return
        if len(s.plain) < PLAIN or s.steps >= AGAIN:
            s.rest, s.steps = PLAIN, 0
            others = [k for k in self._widths if k != s.best]
            if others and s.plain:
                s.turn += 1
                self._try(s, others[s.turn % len(others)])
            else:
                self._try(s, *others)
        else:
            self._judge(s)

    @staticmethod
    def _try(s: _Streams, *widths: int) -> None:
        """Measure these anew, after the steps without drafts."""
        for k in widths:
            s.seconds.pop(k, None)
        s.trials += sorted(widths)

    def _judge(self, s: _Streams) -> None:
        """Choose K. Are steps with it slower? Then rest, and forget them: the text after the rest may be different."""
        if s.trials:
            return
        each = {
            k: typical(seconds) / fmean(s.tokens[k]) for k, seconds in s.seconds.items()
            if len(seconds) >= TRIAL and len(s.tokens.get(k, ())) >= TRIAL
        }  # fmt: skip
        if not each or len(s.plain) < PLAIN:
            return
        k = min(each, key=each.__getitem__)
        if s.best not in each or each[k] < SWITCH * each[s.best]:
            s.best = k
        if each[s.best] > WORTH * typical(s.plain):
            s.rest, s.next_rest = s.next_rest, min(2 * s.next_rest, LONGEST_REST)
            s.seconds.clear()
            s.tokens.clear()
            s.turn += 1
            if s.turn % 2 == 0:  # the best one gets a second chance: measurements err
                s.best = self._widths[s.turn // 2 % len(self._widths)]
            s.trials = [s.best]
        elif s.steps >= 4 * TRIAL:
            s.next_rest = SHORTEST_REST
