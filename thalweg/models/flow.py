"""What flows through the layers of one step beside the hidden states: the one context that every layer is called with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thalweg.hal.step import Array, StepBatch


@dataclass(frozen=True, slots=True)
class KeysValues:
    """Keys and values of a step's tokens, as they leave their projections (values normed, where they are)."""

    k: Array
    v: Array
    weight: Array | None
    """Of the norm of keys."""


@dataclass(slots=True)
class Flow:
    """Made for one run of a step and gone with it. A layer reads what it knows of and leaves the rest alone."""

    batch: StepBatch
    caches: list[Array]
    """One per mixer, of recurrent ones a tuple of several. A mixer puts what was returned in place of what it was given."""
    tables: Mapping[int, Any]
    """Rotary tables f32[positions, rotary_dim], in the order of `ModelSpec.ropes`."""
    inputs: Array | None = None
    """[T, layers, n]: what each layer is given of its own beside the hidden states, in models whose layers are."""
    keys: dict[int, KeysValues] = field(default_factory=dict)
    """Of layers whose caches later layers read, by the index of their cache."""
    rows: Array | None = None
    """i32[T], of steps whose positions have several axes: then the tables have a row for each token, and this says which.
    None: a token's row is its position."""
    laid: Array | None = None
    """f32[T, hidden * n]: what lies over embedded tokens, and beyond `hidden` what is added to what the first layers give."""
    distances: Array | None = None
    """[rows, hidden]: what stands for how far apart two tokens are, in models whose layers read that."""
    carried: Array | None = None
    """[T, hidden]: what a layer's mixture gave that a later layer adds."""
    chosen: Array | None = None
    """i32[N, top], of steps with `Sparse`: what the last layer with an indexer chose."""
    sources: Any = None
    """[N, sources, hidden]: what the encoder gave of the sounds of this step."""
    slots: Array | None = None
    """i32[T]: where each token's adapter lies. None: the step adapts no sequence."""
    adapters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The adapters in the state, as `models.adapters.allocate` makes them."""
    replays: list[Any] | None = None
    """Of steps that verify drafts: the ops over recurrent states, which `layers.recurrent.settle` runs again."""
    read: Array | None = None
    """i32[R], from the last layer on that mixes tokens: the rows that are read of what it gives. None: all are. A mixer that
    `cuts` gives these rows alone."""

    def cut(self, x: Array) -> Array:
        """The rows of x [T, ...] that are read."""
        return x if self.read is None else x.index_select(0, self.read)


@dataclass(frozen=True, slots=True)
class MixerRef:
    """Where a mixer finds what is its own in a `Flow`."""

    layer: int = 0
    """Index of its cache, which may be an earlier layer's."""
    group: int = 0
    """Its KV group: which block table and which attention plan."""
    table: int = -1
    """Its rotary table; -1 = none."""
    of: int = 0
    """The layer that it is a part of."""
    read: bool = False
    """Does a later layer read its cache?"""
