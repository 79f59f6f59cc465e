"""The step: the only data that crosses from the control plane to a device and back.

A step is a pure function `step(params, state, batch) -> (state, result)`. `StepBatch` and `StepResult` are the
same dataclasses on both sides: numpy arrays on the host, the backend's own arrays on the device (`StepBatch.map`).
This module knows no tensor framework.

A batch is a core, which every step has, and parts: the arrays of a feature, in the steps that need it (`hal/parts`, one file
each). Every array declares its dimensions (`hal/fields`), from which padding, checks and layouts follow.

Vocabulary: T tokens computed this step, S sequences, B blocks per sequence in a table, V vocabulary, K tokens
returned per sequence (1 unless speculating). A *slot* is the persistent device row of a sequence; slot 0 and
block 0 are scratch: only padding reads and writes there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from thalweg.hal.fields import Array as Array
from thalweg.hal.fields import Part, Static, arrays, blank, check, constants, dim, grown, map_arrays

ON_DEVICE = -1
"""Token id meaning "this slot's history at this position": sampled by an earlier step, never left the device."""

SCRATCH = 0
"""The slot and block that padding uses."""

P = TypeVar("P", bound=Part)


@dataclass(frozen=True, slots=True)
class Features(Static):
    """Work of a step beyond greedy tokens. Static: an executable is compiled for its features.

    An executable compiled for a superset of features gives the same tokens; `covers` says so.
    """

    random: bool = False
    """Some row has temperature > 0."""
    truncate: bool = False
    """Some row uses top_k, top_p or min_p."""
    logprobs: int = -1
    """-1: none; k >= 0: of the sampled token and of the k most likely."""
    parts: tuple[tuple[type[Part], int], ...] = ()
    """Kinds of parts a batch may have, each with its level, in the order of their names."""

    def plus(self, kind: type[Part], level: int = 0) -> Features:
        """These and a part, at this level."""
        others = (p for p in self.parts if p[0] is not kind)
        return replace(self, parts=_sort_parts([*others, (kind, level)]))

    def level(self, kind: type[Part]) -> int:
        """-1: no batch has this part."""
        return next((level for k, level in self.parts if k is kind), -1)

    @property
    def plain(self) -> bool:
        """Every row returns its argmax, and nothing more."""
        return not self.random and self.logprobs < 0 and not any(kind.logits for kind, _ in self.parts)

    def covers(self, other: Features) -> bool:
        mine, its = ((f.random, f.truncate, f.logprobs) for f in (self, other))
        return all(a >= b for a, b in zip(mine, its, strict=True)) and all(self.level(k) >= n for k, n in other.parts)


def features_of(parts: Iterable[Part], random: bool = False, truncate: bool = False, logprobs: int = -1) -> Features:
    return Features(random, truncate, logprobs, _sort_parts((type(p), p.level) for p in parts))


@dataclass(frozen=True, slots=True)
class StepShape:
    """A bucket: the padded sizes one executable is captured or compiled for."""

    tokens: int
    seqs: int
    blocks: int
    uniform: bool = False
    """Every sequence has the same number of new tokens (tokens // seqs): a decode or verify bucket."""

    def fits(self, batch: StepBatch) -> bool:
        """Padding tokens need a padding sequence to belong to."""
        tokens, seqs = batch.tokens.shape[0], batch.slots.shape[0]
        return (
            ((tokens == self.tokens and seqs <= self.seqs) or (tokens < self.tokens and seqs < self.seqs))
            and max(t.shape[1] for t in batch.block_tables) <= self.blocks
            and (not self.uniform or batch.uniform == self.tokens // self.seqs)
        )


@dataclass(slots=True)
class SamplingArrays:
    """How each sequence's token is sampled. A row with temperature 0 is greedy."""

    temperature: Array = dim("S", np.float32)
    top_k: Array = dim("S", np.int32)  # 0 = every token
    top_p: Array = dim("S", np.float32, fill=1)  # 1 = off
    min_p: Array = dim("S", np.float32)  # 0 = off
    seed: Array = dim("S 2", np.int32)  # the low and high words of the 64-bit seed

    @staticmethod
    def greedy(seqs: int) -> SamplingArrays:
        """Rows that ask for nothing: greedy, no truncation."""
        return blank(SamplingArrays, {"S": seqs})


@dataclass(frozen=True, slots=True)
class TableRows(Static):
    """Rows of a block table kept by the device (`Device.keeps_tables`), for batches without a copy: their numbers, and every
    change of the whole table since the batch before. Entries of a row beyond its sequence's tokens mean nothing."""

    slots: Array  # i32[S]; the table's row of each sequence
    blocks: int
    """Columns of this batch."""
    size: tuple[int, int]
    """Rows (slots, with scratch) and columns of the whole table. Row 0 stays zero: it is the padding's."""
    places: Array  # i64[N]; row * size[1] + column of each change, each place once
    values: Array  # i32[N]; the block there now

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.slots), self.blocks

    def grown(self, sizes: Mapping[str, int]) -> TableRows:
        """The same with rows of padding sequences."""
        more = np.full(sizes["S"] - len(self.slots), SCRATCH, np.int32)
        return replace(self, slots=np.concatenate([self.slots, more]), blocks=sizes["B"])

    @staticmethod
    def scratch(seqs: int, size: tuple[int, int]) -> TableRows:
        """Of padding sequences, in which nothing changed."""
        return TableRows(np.full(seqs, SCRATCH, np.int32), 1, size, np.empty(0, np.int64), np.empty(0, np.int32))


@dataclass(slots=True)
class StepBatch:
    """One step's work. Tokens are grouped by sequence, in order of position: `query[s]` for sequence s.

    The step writes every token of the batch, and every token it samples, into the state's history row of its slot,
    so that a later step can name it by `ON_DEVICE` and penalties can look back.
    """

    tokens: Array = dim("T", np.int32)  # ids, or ON_DEVICE
    token_seq: Array = dim("T", np.int32)  # row (0..S-1) of the sequence each token belongs to
    positions: Array = dim("T", np.int32)  # position of each token in its sequence, from 0
    slots: Array = dim("S", np.int32, fill=SCRATCH)  # persistent device row of each sequence
    context: Array = dim("S", np.int32)  # tokens already in the cache
    query: Array = dim("S", np.int32)  # new tokens this step
    last_row: Array = dim("S", np.int32)  # index in T of each sequence's last new token
    emit: Array = dim("S", np.bool_)  # sample after the last new token? (False for all but the last chunk of a prefill)
    block_tables: tuple[Array, ...] = dim("S B", np.int32, fill=SCRATCH)  # per KV group; TableRows where the device keeps them
    sampling: SamplingArrays = field(kw_only=True)
    uniform: int = 0  # static: every sequence has this many new tokens; 0 if they differ
    last_alone: bool = False  # static, of one layer: only `last_row` of attention's output is read, the rest is any
    features: Features = field(default_factory=Features)  # static: the features of the step, or more
    parts: tuple[Part, ...] = ()  # one of a kind, in any order; an absent kind is not asked for
    metadata: tuple[Mapping[str, Array], ...] = ()  # AttentionBackend.metadata, one per KV group; filled by the runner

    def get(self, kind: type[P]) -> P | None:
        """The part of this kind, if the step has it."""
        for part in self.parts:
            if type(part) is kind:
                return part
        return None

    def under(self, features: Features) -> StepBatch:
        """The batch for an executable made for these features: its parts have the levels of that."""
        parts = tuple(replace(p, level=max(p.level, features.level(type(p)))) for p in self.parts)
        return replace(self, features=features, parts=parts)

    def infer_features(self, logprobs: int = -1) -> Features:
        """The features that this (host) batch's arrays need. A logprob count comes from the caller. For tests and small tools:
        the scheduler keeps its features up to date as sequences come and go."""
        s = self.sampling
        truncate = bool(((s.top_k > 0) | (s.top_p < 1) | (s.min_p > 0)).any())
        return features_of(self.parts, bool((s.temperature > 0).any()), truncate, logprobs)

    def map(self, f: Callable[[Array], Array]) -> StepBatch:
        """The same batch with `f` applied to every array: how a backend moves it to its device."""
        moved: StepBatch = map_arrays(self, lambda _, a: f(a))
        return moved

    def arrays(self) -> list[tuple[str, Array]]:
        """Every array with its dotted name, in a fixed order (the order `pack` lays them out)."""
        return arrays(self)

    def pad(self, shape: StepShape) -> StepBatch:
        """This (host) batch padded to a bucket. Padding tokens and sequences use the scratch slot and block. Flat lists, unless
        empty, grow to powers of two, so that they have few lengths."""
        t, s = self.tokens.shape[0], self.slots.shape[0]
        if shape.tokens < t or shape.seqs < s or (shape.tokens > t and shape.seqs == s):
            raise ValueError(f"batch of {t} tokens, {s} sequences does not pad to {shape}")
        sizes = {"T": shape.tokens, "S": shape.seqs, "B": shape.blocks}
        out = grown(self, sizes)
        out.sampling = grown(self.sampling, sizes)
        out.parts = tuple(grown(p, sizes) for p in self.parts)
        if not shape.uniform:
            out.uniform = 0
        if shape.seqs == s:
            return out
        if shape.uniform:
            out.query[s:] = shape.tokens // shape.seqs
        else:
            out.query[s] = shape.tokens - t  # the first padding sequence owns every padding token
        added = out.query[s:]
        ends = np.cumsum(added, dtype=np.int32)
        out.last_row[s:] = t + ends - 1
        if shape.tokens > t:
            out.token_seq[t:] = np.repeat(np.arange(s, shape.seqs, dtype=np.int32), added)
            out.positions[t:] = np.arange(shape.tokens - t, dtype=np.int32) - np.repeat(ends - added, added)
        return out

    def check(self) -> None:
        """Raise ValueError, naming the field, if something does not fit the rest. For tests and debug runs."""
        T, S = self.tokens.shape[0], self.slots.shape[0]
        for name, x in (("", self), (".sampling", self.sampling), *((f".{type(p).__name__}", p) for p in self.parts)):
            check(x, f"StepBatch{name}", {"T": T, "S": S})
        if int(self.query.sum()) != T:
            raise ValueError(f"StepBatch.query: sums to {int(self.query.sum())}, but there are {T} tokens")
        if not np.array_equal(self.token_seq, np.repeat(np.arange(S), self.query)):
            raise ValueError("StepBatch.token_seq: tokens are not grouped by sequence in order")
        start = np.cumsum(self.query) - self.query
        if not np.array_equal(
            self.positions, np.arange(T) - np.repeat(start, self.query) + np.repeat(self.context, self.query)
        ):
            raise ValueError("StepBatch.positions: not context, context + 1, ... for every sequence")
        if not np.array_equal(self.last_row, np.cumsum(self.query) - 1):
            raise ValueError("StepBatch.last_row: not the last token of each sequence")
        if len(set(self.slots.tolist()) - {SCRATCH}) != int((self.slots != SCRATCH).sum()):
            raise ValueError("StepBatch.slots: two sequences share a slot")
        if len({type(p) for p in self.parts}) != len(self.parts):
            raise ValueError("StepBatch.parts: two of one kind")
        for part in self.parts:
            part.check(self)


@dataclass(slots=True)
class Logprobs:
    """Log probabilities (or logits, by the engine's logprobs mode) of N rows: the chosen token, then the k best."""

    tokens: Array  # i32[N, 1 + k]
    values: Array  # f32[N, 1 + k]
    ranks: Array  # i32[N]; 1 = the chosen token was the most likely


@dataclass(slots=True)
class StepResult:
    """The output of a step, row by row as in the batch."""

    tokens: Array  # i32[S, K]
    counts: Array  # i32[S]; how many of the K are real: one more than guesses that were right (0 where emit was False)
    logprobs: Logprobs | None = None  # N = S * K; row s * K + k is that of tokens[s, k]
    score: Logprobs | None = None  # N = P; the prompt tokens of `Scores`
    invalid: Array | None = None  # bool[S]; logits held NaN or +inf: the row's token means nothing
    pooled: Array | None = None  # f32[S, H]; a vector per sequence, of models that give those: then tokens mean nothing
    each: Array | None = None  # f32[N, H]; a vector per token of `EachToken`, or its weights in heads that align
    drafts: Array | None = None  # i32[S, K]; tokens proposed after those returned, of steps with `Proposing`; -1 ends them
    frames: Array | None = None  # i32[S, books - 1]; the codes after the first of each token, of models whose tokens are frames
    extras: Mapping[str, Array] = field(default_factory=dict)


State = Any
"""The input and output of every step: the KV cache per mixer of a layer and the token history. A pytree of the backend's
arrays."""
Params = Any
"""The weights: nested dicts of the backend's arrays or packed weights."""
Step = Callable[[Params, State, StepBatch], tuple[State, StepResult]]


def appendable(step: Step) -> int:
    """The longest sequence (in tokens) to whose chunk a backend may append any tokens: no result of the step, and no later
    step, depends on them. They stand behind the token at `last_row`, and count in neither `query` nor `context`. 0: it may
    not. Steps say so by an attribute of this name."""
    return int(getattr(step, "appendable", 0))


@dataclass(slots=True)
class StateBox:
    """The one owner of the live state. Every executable of a device reads `value` and puts back the state from its step. No
    other reference lives across a call (a backend may reuse the old state's memory)."""

    value: State


Layout = tuple[tuple[str, str, tuple[int, ...], int], ...]
"""Where each array of a batch lies in one buffer: (name, dtype, shape, byte offset), 16-byte aligned, in `arrays` order."""


def lay_out(batch: StepBatch, arrays: Sequence[tuple[str, Array]] | None = None) -> tuple[Layout, int]:
    """The layout of a (host) batch's arrays in one buffer, and the buffer's bytes. arrays: those of the batch, if known."""
    layout, offset = [], 0
    for name, a in batch.arrays() if arrays is None else arrays:
        layout.append((name, a.dtype.str, a.shape, offset))
        offset += -(-a.nbytes // 16) * 16
    return tuple(layout), offset


def pack(batch: StepBatch, layout: Layout, buffer: np.ndarray, arrays: Sequence[tuple[str, Array]] | None = None) -> None:
    """The batch's bytes into `buffer` (u8, at least as long as `lay_out` says): then one copy moves everything."""
    for (_, a), (_, _, _, at) in zip(batch.arrays() if arrays is None else arrays, layout, strict=True):
        buffer[at : at + a.nbytes] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)


def unpack(batch: StepBatch, arrays: Mapping[str, Array]) -> StepBatch:
    """The same batch with its arrays replaced by those of these (dotted) names: views of a buffer that `pack` filled."""
    rebuilt: StepBatch = map_arrays(batch, lambda name, _: arrays[name])
    return rebuilt


def statics(batch: StepBatch) -> tuple[Any, ...]:
    """Values other than arrays that a step may depend on: with an equal layout and equal statics, a captured step remains
    valid."""
    widths = tuple(t.blocks for t in batch.block_tables if isinstance(t, TableRows))
    return (
        batch.uniform,
        batch.features,
        widths,
        tuple(map(type, batch.parts)),
        *(tuple(constants(m)) for m in batch.metadata),
    )


def _sort_parts(parts: Iterable[tuple[type[Part], int]]) -> tuple[tuple[type[Part], int], ...]:
    return tuple(sorted(parts, key=lambda p: p[0].__name__))
