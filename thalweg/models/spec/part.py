"""What a layer's declaration is asked, whatever kind of mixer or feed-forward part it has."""

from __future__ import annotations

from typing import Protocol

from thalweg.hal.attention import AttnSpec
from thalweg.hal.kv import CrossSpec, StateSpec
from thalweg.models.spec.rope import Rope
from thalweg.models.weights import Weights


class Mixer(Protocol):
    """What mixes a sequence's tokens: attention, or a recurrence."""

    @property
    def rope(self) -> Rope | None:
        """Its rotary table."""

    @property
    def widths(self) -> tuple[int, int, int]:
        """Heads, heads of keys and values, values of a head: what a step's temporaries are counted by."""

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> AttnSpec | StateSpec | CrossSpec:
        """What is kept of a sequence, on one of `ranks`, where none is longer than max_len."""

    def weights(self, at: str, hidden: int) -> Weights:
        """at: the layer's prefix of tensor names."""


class FFN(Protocol):
    """What works on each token alone."""

    @property
    def width(self) -> int:
        """Inner values that one token's step holds."""

    def weights(self, at: str, hidden: int) -> Weights:
        """at: the layer's prefix of tensor names."""
