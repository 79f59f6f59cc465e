"""Watches the first rounds of a drafter with layers. A wrong checkpoint, or hidden states of a wrong layer, change no text.
They only show as drafts that are rarely right."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

ROUNDS = 256
"""Rounds of drafts that are watched, of all sequences."""
LEAST = 0.2
"""The share of right first drafts below which a warning is logged."""


class AcceptanceWatch:
    """Logs at most once, and counts nothing afterwards."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._rounds = self._right = 0
        self.done = False

    def count(self, rounds: int, right: int) -> None:
        """right: rounds with a right first draft."""
        self._rounds, self._right = self._rounds + rounds, self._right + right
        if self._rounds < ROUNDS:
            return
        self.done = True
        if self._right < LEAST * self._rounds:
            logger.warning(
                "speculative_config: %s: %.0f %% of the first drafts were right in the first %d rounds. No text depends on "
                "that, but it is slow. Was the drafter trained for this model? The log names the layers whose hidden "
                "states it reads",
                self._method, 100 * self._right / self._rounds, self._rounds,
            )  # fmt: skip
