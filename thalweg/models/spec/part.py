"""The interface of a layer's mixers and feed-forward parts."""

from __future__ import annotations

from typing import Protocol

from thalweg.hal.attention import AttnSpec
from thalweg.hal.kv import CrossSpec, RowsSpec, StateSpec
from thalweg.models.spec.rope import Rope
from thalweg.models.weights import Weights


class Mixer(Protocol):
    """A part that mixes a sequence's tokens: attention, or a recurrence."""

    @property
    def rope(self) -> Rope | None:
        """Its rotary table."""

    @property
    def widths(self) -> tuple[int, int, int]:
        """Heads, heads of keys and values, values of a head: the sizes of a step's temporaries."""

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> AttnSpec | RowsSpec | StateSpec | CrossSpec:
        """The state of a sequence, on one of `ranks`, where no sequence is longer than max_len."""

    def weights(self, at: str, hidden: int) -> Weights:
        """at: the layer's prefix of tensor names."""


class FFN(Protocol):
    """A part that transforms each token separately."""

    @property
    def width(self) -> int:
        """Inner values that one token's step holds."""

    def weights(self, at: str, hidden: int) -> Weights:
        """at: the layer's prefix of tensor names."""
