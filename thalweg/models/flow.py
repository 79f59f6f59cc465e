"""What flows through the layers of one step beside the hidden states: the one context that every layer is called with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thalweg.hal.step import Array, StepBatch


@dataclass(slots=True)
class Flow:
    """Made for one run of a step and gone with it. A layer reads what it knows of and leaves the rest alone."""

    batch: StepBatch
    caches: list[Array]
    """One per layer, of recurrent layers a tuple of several. A layer puts what was returned in place of what it was given."""
    tables: Mapping[int, Any]
    """Rotary tables f32[positions, rotary_dim], in the order of `ModelSpec.ropes`."""
    sources: Any = None
    """[N, sources, hidden]: what the encoder gave of the sounds of this step."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a layer finds what is its own in a `Flow`."""

    layer: int = 0
    """Index of its cache."""
    group: int = 0
    """Its KV group: which block table and which attention plan."""
    table: int = -1
    """Its rotary table; -1 = none."""
