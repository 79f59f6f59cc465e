"""Speculation, as the scheduler knows it: somebody guesses a sequence's next tokens, and one step verifies them all.

A draft is right exactly if it is the token that would be sampled in its place, because the noise of sampling is a hash of
seed, position and token. So what a sequence says does not depend on who guesses, nor on whether anybody does.

Sequences are guessed for if masks are all that changes their logits: a draft has a mask of its own. It has no history and no
bias, so others (`slots.PER_TOKEN`) are not guessed for. Nor are those that want logprobs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class Drafter(Protocol):
    """Guesses. It reads the slots and changes nothing of them; of a slot it has not seen with this serial it knows nothing."""

    most: int
    """Drafts of a sequence in a step."""

    def propose(self, slot: int, most: int) -> list[int]:
        """At most `most` tokens that may follow all that is known of the sequence, every one of its tokens being known."""

    def hopes(self, slot: int) -> bool:
        """Is it worth to wait for the tokens in flight, and to propose then?"""

    def learn(self, slot: int, accepted: int) -> None:
        """So many of the drafts last proposed were right."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A sequence's last known token and guesses at those after it, to be computed in one step."""

    slot: int
    tokens: list[int]


@dataclass(slots=True)
class DraftCounters:
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)
    """Accepted drafts by their place in the proposal."""

    def count(self, drafted: int, accepted: int) -> None:
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.per_position += [0] * (drafted - len(self.per_position))
        for place in range(accepted):
            self.per_position[place] += 1
