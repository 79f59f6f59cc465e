"""The input of a loop over layers, where it is the sum of two residual streams (HRM-Text)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Weights, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopInput:
    """The operation before a layer. The stream is normed, then saved, and a saved stream is added to it."""

    norm: Norm | None = None
    saves: int | None = None
    """A place, by number. A later layer may save in the same place."""
    adds: int | None = None
    """The place of the other stream. None: `start` is added."""
    start: str = ""
    """The tensor [hidden] that is added to every token, from the root."""

    def __post_init__(self) -> None:
        if (self.adds is None) == (not self.start):
            raise ValueError("LoopInput: either a saved stream is added, or a tensor")

    def weights(self, at: str, hidden: int) -> Weights:
        result = {} if self.norm is None else {"norm": self.norm.weights(at)}
        return result | ({"start": vector(self.start, hidden, fill="zeros")} if self.start else {})
