"""Skip connections of the residual stream over several layers (Solar Pro)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSkip:
    """The operation before a layer. It saves the stream in places. Then the stream becomes
    weight * saved + (1 - weight) * stream for each place of `reads`, in their order."""

    saves: tuple[int, ...] = ()
    """Places, by number. A later layer may save in the same place."""
    reads: tuple[int, ...] = ()
    weight: float

    def weights(self, at: str, hidden: int) -> Weights:
        return {}
