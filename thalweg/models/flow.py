"""The context of one step that every layer is called with, in addition to the hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thalweg.hal.step import Array, StepBatch

if TYPE_CHECKING:
    from thalweg.models.adapters import AdapterRows
    from thalweg.models.layers.compressed import ClosedWindows, Entries


@dataclass(frozen=True, slots=True)
class KeysValues:
    """Keys and values of a step's tokens, as they leave their projections (values normed, where they are)."""

    k: Array
    v: Array
    weight: Array | None
    """Of the norm of keys."""


@dataclass(frozen=True, slots=True)
class SourceVectors:
    """Sources of cross-attention, encoded in this step."""

    vectors: Array
    """[M, hidden], one source after the other."""
    lengths: tuple[int, ...]
    """Vectors of each."""
    begins: tuple[int, ...] = ()
    """The position of each in its sequence, where layers ask for it."""


@dataclass(slots=True)
class Flow:
    """Created for one run of a step. A layer reads the fields that it supports, and ignores the rest."""

    batch: StepBatch
    caches: list[Array]
    """One per mixer; a recurrent mixer has a tuple of several. A mixer replaces its cache by the returned one."""
    tables: Mapping[int, Any]
    """Rotary tables f32[positions, rotary_dim], in the order of `ModelSpec.ropes`."""
    inputs: Array | None = None
    """[T, layers, n]: per-layer inputs, in models with them."""
    keys: dict[int, KeysValues] = field(default_factory=dict)
    """Keys and values of layers whose caches later layers read, by the index of their cache."""
    second: Mapping[int, Any] = field(default_factory=dict)
    """Of steps with several position axes: `tables` for the second half of each head, where it differs (`Rope.second`)."""
    rows: Array | None = None
    """i32[T], of steps with several position axes: the row of each token in the tables, which then have one per token.
    None: a token's row is its position."""
    axes: AxisTables | None = None
    """Of models with several position axes, in every step."""
    laid: Array | None = None
    """f32[T, hidden * n]: replaces embeddings of tokens. Values beyond `hidden` are added to the first layers' outputs."""
    distances: Array | None = None
    """[rows, hidden]: embeddings of token distances, in models whose layers read them."""
    heads: tuple[Array, Array, Array] | None = None
    """q [T, heads, D], k and v [T, kv_heads, D], from the mixer before attention that reads them."""
    mixed: tuple[Array, Array] | None = None
    """[T, heads, n] and [T, heads, 1]: what the next mixer adds to its heads, and the factor of these before."""
    routed: Array | None = None
    """[T, n]: what the last router with layers made of each token."""
    taps: MixerRef | None = None
    """The place of the state of this layer's convolutions, in models with several in a layer."""
    carried: Array | None = None
    """[T, hidden]: an MoE output that a later layer adds."""
    memory: Array | None = None
    """[T, inner]: the output of an earlier layer's scan, which later layers gate (SambaY)."""
    saved: dict[int, Array] = field(default_factory=dict)
    """[T, hidden]: residual streams that later layers mix with theirs, by the number of their place."""
    first_values: Array | None = None
    """[T, inner]: the values of the first layer, which later ones mix with theirs (RWKV-7)."""
    chosen: Array | None = None
    """i32[N, top], of steps with `Sparse`: the indices from the last layer with an indexer."""
    stream_weights: Array | None = None
    """f32[T, n]: those of the residual streams in the next part's input, where the part before has computed them. None: the
    first stream is the input."""
    closed: dict[int, ClosedWindows] = field(default_factory=dict)
    """Windows of so many tokens that end in this step, found once for all layers."""
    entries: Entries | None = None
    """Of compressed attention: what the mixers of a layer give each other."""
    sources: SourceVectors | None = None
    """The output of the source encoder in this step."""
    shown: Array | None = None
    """bool[T, 1]: which tokens attend to a source, as the last cross attention of sources with positions found it."""
    adapter_rows: AdapterRows | None = None
    """Which adapter each row has. None: the step adapts no sequence."""
    adapter_rows_read: AdapterRows | None = None
    """The same of the rows that `read` names, where it does."""
    weights: list[Array] | None = None
    """Of steps with `EachToken` of a model that aligns: f32[N, heads, sources] of each layer with such heads."""
    near: tuple[Array, Array] | None = None
    """Of image encoders with convolutions over patches: i32[T, n], the neighbours of each patch, and f32[T, n], 0 for those
    beyond the image, else 1."""
    replays: list[Any] | None = None
    """Of steps that verify drafts: the ops over recurrent states, which `layers.recurrent.settle` runs again."""
    read: Array | None = None
    """i32[R]: sampled rows, set from the last token-mixing layer on. None: all rows are read. A mixer that `cuts` returns only
    these rows."""

    def cut(self, x: Array) -> Array:
        """The sampled rows of x [T, ...]."""
        return x if self.read is None else x.index_select(0, self.read)


@dataclass(frozen=True, slots=True)
class AxisTables:
    """Rotary tables of a model whose positions have several axes."""

    positions: Array
    """i32[T], in the sequence."""
    shift: Array | None
    """i32[T, axes]: added to them for each axis. None: nothing."""
    most: int
    """The largest position."""
    tables: Mapping[int, Any]
    """f32[positions, rotary_dim], in the order of `ModelSpec.ropes`."""
    columns: Mapping[int, Any]
    """i64[1, 1, rotary_dim]: the axis by which each column is read."""
    count: int = 3
    """Axes."""

    @property
    def at(self) -> Array:
        """i64[T, axes]: the position of each token along each axis."""
        each = self.positions.unsqueeze(1)
        at = each.expand(-1, self.count) if self.shift is None else each + self.shift
        return at.clamp(0, self.most).long()

    def rows(self, table: int, at: Array) -> Array:
        """f32[N, rotary_dim] for positions i64[N, axes]."""
        return self.read(table, at, self.columns[table])

    def read(self, table: int, at: Array, columns: Array) -> Array:
        """The same by other columns."""
        return self.tables[table][at].gather(1, columns.expand(at.shape[0], 1, -1)).squeeze(1)


@dataclass(frozen=True, slots=True)
class MixerRef:
    """The place of a mixer's data in a `Flow`."""

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
