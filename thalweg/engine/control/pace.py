"""How many prompt tokens a step may compute beside running streams, so that they keep at least a share of their speed.

A step with prompt tokens takes longer than one without. From what steps took, this keeps two moving averages: seconds of a step
that only decodes, and seconds per prompt token on top. The allowance is what makes a mixed step `slowdown` times a
decoding one. Times are given to it; it reads no clock, so a simulated clock makes it deterministic.
"""

from __future__ import annotations

WEIGHT = 0.3
"""Of the newest observation."""
FIRST = 64
"""Prompt tokens beside running streams before anything is known."""
LEAST = 16
"""A prompt always gets on, however slow it is."""


class Pace:
    def __init__(self, slowdown: float) -> None:
        """slowdown: 2 = running streams keep half their speed while others' prompts are computed; 0 = no limit."""
        self._slowdown = slowdown
        self._decode = 0.0
        self._per_token = 0.0

    def observe(self, prompt_tokens: int, decodes: int, seconds: float) -> None:
        """One step took this long."""
        if not self._slowdown or seconds <= 0:
            return
        if not prompt_tokens:
            self._decode = _mean(self._decode, seconds)
        elif prompt_tokens >= LEAST:
            extra = seconds - (self._decode if decodes else 0.0)
            if extra > 0:
                self._per_token = _mean(self._per_token, extra / prompt_tokens)

    def allowance(self, most: int) -> int:
        """Prompt tokens of a step in which something decodes; at most `most`."""
        if not self._slowdown:
            return most
        if not self._decode or not self._per_token:
            return min(most, FIRST)
        return min(most, max(LEAST, int((self._slowdown - 1) * self._decode / self._per_token)))


def _mean(old: float, new: float) -> float:
    return new if not old else old + WEIGHT * (new - old)
