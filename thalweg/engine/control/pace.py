"""The limit of prompt tokens in a step with running streams, such that those keep at least a share of their speed.

A step with prompt tokens is longer than one without. Two moving averages of observed times are kept: seconds of a step that
only decodes, and additional seconds per prompt token. Over time streams are slowed `slowdown` times at most. Where a decoding
step is long, each step includes the prompt tokens that fit. Where it is short, such chunks would be too small to be
efficient: each chunk has a fixed cost, such as reading its context again. Then a chunk may last `CHUNK_SECONDS`, and the
steps after it only decode until that time is made up for. The caller passes times in. This module reads no clock, so a
simulated clock makes it deterministic.
"""

from __future__ import annotations

from collections import deque

WEIGHT = 0.3
"""Weight of the newest observation."""
FIRST = 64
"""Prompt tokens in a step with running streams before anything is known."""
LEAST = 16
"""A prompt always gets on, however slow it is."""
CHUNK_SECONDS = 0.025
"""A chunk may delay streams this long at once, however short a decoding step is: the pause is not visible."""

MOST_DEBT = 4 * CHUNK_SECONDS
LONG_SECONDS = 0.01
"""Tens of times the host's work to plan a step and to read its result."""


class Pace:
    def __init__(self, slowdown: float) -> None:
        """slowdown: 2 = running streams keep half their speed while others' prompts are computed; 0 = no limit."""
        self._slowdown = slowdown
        self._decode = 0.0
        self._per_token = 0.0
        self._debt = 0.0
        """Seconds for which streams must run undisturbed before the next chunk."""
        self._flying: deque[bool] = deque()
        """Per step launched and not observed: does it leave a debt?"""

    def record_launch(self, prompt_tokens: int, decodes: int, rationed: bool = True) -> None:
        """A step of this kind is launched. rationed: it decodes some streams."""
        self._flying.append(rationed and decodes > 0 and prompt_tokens > self.newcomers(prompt_tokens))

    def observe(self, prompt_tokens: int, decodes: int, seconds: float, rationed: bool = True) -> None:
        """The oldest launched step lasted `seconds`. One without streams leaves no debt."""
        self._flying.popleft()
        if seconds <= 0:
            return
        mixed = rationed and prompt_tokens > 0 and decodes > 0
        extra = max(0.0, seconds - self._decode) if decodes else seconds
        if not prompt_tokens:
            self._decode = _mean(self._decode, seconds)
            self._debt = max(0.0, self._debt - max(0.0, self._slowdown - 1) * seconds)
        elif prompt_tokens >= LEAST and extra:
            self._per_token = _mean(self._per_token, extra / prompt_tokens)
        if mixed and self._decode and self._slowdown:
            self._debt = max(0.0, self._debt + extra - (self._slowdown - 1) * self._decode)

    def is_long(self, prompt_tokens: int) -> bool:
        """Will a step with that many be so long that the host's work on a step is negligible?"""
        return prompt_tokens * self._per_token >= LONG_SECONDS

    def allowance(self, most: int) -> int:
        """Prompt tokens of a step in which a sequence decodes; at most `most`, 0 while a debt is open."""
        if not self._slowdown:
            return most
        if not self._decode or not self._per_token:
            return min(most, FIRST)
        time = (self._slowdown - 1) * self._decode
        if time < CHUNK_SECONDS:
            if self._debt > 0 or any(self._flying):
                return 0
            time = CHUNK_SECONDS
        return min(most, max(LEAST, int(time / self._per_token)))

    def spare(self) -> float:
        """Seconds that a launch of an encoder may take while sequences decode; 0 while a debt is open."""
        if not self._slowdown:
            return CHUNK_SECONDS
        if self._debt > 0:
            return 0.0
        return max(CHUNK_SECONDS, (self._slowdown - 1) * self._decode)

    def spend(self, seconds: float) -> None:
        """Account for a launch of an encoder."""
        if self._slowdown and self._decode:
            self._debt += seconds

    def newcomers(self, most: int) -> int:
        """While a debt is open: tokens of short prompts, computed whole, that a step may include without slowing streams more
        than agreed. They need not wait for the debt of a long prompt; it waits longer instead, to a limit."""
        if not self._decode or not self._per_token or self._debt > MOST_DEBT:
            return 0
        return min(most, int((self._slowdown - 1) * self._decode / self._per_token))


def _mean(old: float, new: float) -> float:
    return new if not old else old + WEIGHT * (new - old)
