"""The step: the only data that crosses from the control plane to a device and back.

A step is a pure function `step(params, state, batch) -> (state, result)`. `StepBatch` and `StepResult` are the
same dataclasses on both sides: numpy arrays on the host, the backend's own arrays on the device (`StepBatch.map`).
This module knows no tensor framework.

Vocabulary: T tokens computed this step, S sequences, B blocks per sequence in a table, V vocabulary, K tokens
returned per sequence (1 unless speculating). A *slot* is the persistent device row of a sequence; slot 0 and
block 0 are scratch: padding reads and writes there and nobody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

Array = Any
"""A numpy array on the host; the backend's own array type inside a step."""

ON_DEVICE = -1
"""Token id meaning "what this slot's history holds at this position": sampled by an earlier step, never left the device."""

SCRATCH = 0
"""The slot and block that padding uses."""

LIST = 8
"""Least length that padding gives a flat list."""


@dataclass(frozen=True, slots=True)
class Features:
    """What the sampling tail of a step must do. Static: part of what an executable is compiled for.

    An executable compiled for a superset of features gives the same tokens; `covers` says so.
    """

    random: bool = False
    """Some row has temperature > 0."""
    truncate: bool = False
    """Some row uses top_k, top_p or min_p."""
    lookback: bool = False
    """Some row has penalties or multi-token bad words, so the history is read."""
    bias: bool = False
    """`bias_*` is not empty (logit_bias, single-token bad words, min_tokens)."""
    mask: bool = False
    """`mask` is present (allowed_token_ids, grammars)."""
    logprobs: int = -1
    """-1: none; k >= 0: of the sampled token and of the k most likely."""
    score: int = -1
    """-1: none; k >= 0: the same for `score_rows` (prompt logprobs)."""
    drafts: int = 0
    """At most so many of a sequence's last tokens are guesses to be verified (`draft_row`): K is one more."""

    @property
    def plain(self) -> bool:
        """Every row takes its argmax, and wants to know no more."""
        return not (self.random or self.lookback or self.bias or self.mask) and self.logprobs < 0

    def covers(self, other: Features) -> bool:
        return all(getattr(self, f.name) >= getattr(other, f.name) for f in fields(self))


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
    """Per-sequence sampling parameters, all of length S. A row with temperature 0 is greedy."""

    temperature: Array  # f32[S]
    top_k: Array  # i32[S]; 0 = every token
    top_p: Array  # f32[S]; 1 = off
    min_p: Array  # f32[S]; 0 = off
    repetition: Array  # f32[S]; 1 = off; counts prompt and output
    presence: Array  # f32[S]; 0 = off; counts output only
    frequency: Array  # f32[S]; 0 = off; counts output only
    prompt_len: Array  # i32[S]; positions at or beyond it are output
    seed: Array  # i32[S, 2]; the low and high words of the 64-bit seed

    @staticmethod
    def greedy(seqs: int) -> SamplingArrays:
        """The values of a row that asks for nothing: greedy, no truncation, no penalty."""
        full, i32, f32 = np.full, np.int32, np.float32
        return SamplingArrays(
            temperature=full(seqs, 0, f32), top_k=full(seqs, 0, i32), top_p=full(seqs, 1, f32), min_p=full(seqs, 0, f32),
            repetition=full(seqs, 1, f32), presence=full(seqs, 0, f32), frequency=full(seqs, 0, f32),
            prompt_len=full(seqs, 0, i32), seed=np.zeros((seqs, 2), i32),
        )  # fmt: skip


def _none(dtype: type, *shape: int) -> Callable[[], Array]:
    return lambda: np.empty(shape or (0,), dtype)


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a block table that a device keeps (`Device.keeps_tables`), in place of a copy of them: which rows, and what has
    changed in the whole table since the batch before. Entries of a row beyond its sequence's tokens mean nothing."""

    slots: Array  # i32[S]; the table's row of each sequence
    blocks: int
    """Columns of this batch."""
    size: tuple[int, int]
    """Rows (slots, with scratch) and columns of the whole table. Row 0 stays zero: it is the padding's."""
    places: Array  # i64[N]; row * size[1] + column of what changed, each place once
    values: Array  # i32[N]; the block there now

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.slots), self.blocks

    @staticmethod
    def scratch(seqs: int, size: tuple[int, int]) -> TableRows:
        """Of padding sequences, in which nothing changed."""
        return TableRows(np.full(seqs, SCRATCH, np.int32), 1, size, np.empty(0, np.int64), np.empty(0, np.int32))


@dataclass(slots=True)
class StepBatch:
    """One step's work. Tokens are grouped by sequence, in order of position; sequence s owns `query[s]` of them.

    The step writes every token of the batch, and every token it samples, into the state's history row of its slot,
    so that a later step can name it by `ON_DEVICE` and penalties can look back.
    """

    tokens: Array  # i32[T]; ids, or ON_DEVICE
    token_seq: Array  # i32[T]; row (0..S-1) of the sequence each token belongs to
    positions: Array  # i32[T]; position of each token in its sequence, from 0
    slots: Array  # i32[S]; persistent device row of each sequence
    context: Array  # i32[S]; tokens already in the cache
    query: Array  # i32[S]; new tokens this step
    last_row: Array  # i32[S]; index in T of each sequence's last new token
    emit: Array  # bool[S]; sample after the last new token? (False for all but the last chunk of a prefill)
    block_tables: tuple[Array, ...]  # i32[S, B] per KV group, unused entries SCRATCH; TableRows where the device keeps tables
    sampling: SamplingArrays
    uniform: int = 0  # static: every sequence has this many new tokens; 0 if they differ
    features: Features = field(default_factory=Features)  # static: what sampling must do
    mask: Array | None = None  # u32[S, ceil(V / 32)]; bit (t % 32) of word t // 32 set = token t allowed

    # Flat lists, each padded with rows that write to scratch or add zero.
    bias_row: Array = field(default_factory=_none(np.int32))  # i32[N]; row in S
    bias_token: Array = field(default_factory=_none(np.int32))  # i32[N]
    bias_value: Array = field(default_factory=_none(np.float32))  # f32[N]; added to the logit; -inf bans
    bad_row: Array = field(default_factory=_none(np.int32))  # i32[W]; row in S
    bad_words: Array = field(
        default_factory=_none(np.int32, 0, 1)
    )  # i32[W, L]; last column is banned after the others; -1 pads on the left
    history_slot: Array = field(
        default_factory=_none(np.int32)
    )  # i32[H]; tokens this step does not compute but penalties must see
    history_pos: Array = field(default_factory=_none(np.int32))  # i32[H]
    history_token: Array = field(default_factory=_none(np.int32))  # i32[H]
    score_rows: Array = field(default_factory=_none(np.int32))  # i32[P]; rows of T whose next token is known and scored
    score_targets: Array = field(default_factory=_none(np.int32))  # i32[P]; that next token

    # Guesses at a sequence's next tokens, at the end of its new tokens. One is right if the token before it samples it.
    draft_row: Array = field(default_factory=_none(np.int32))  # i32[D]; rows of T that are guesses
    draft_pick: Array = field(
        default_factory=_none(np.int32, 0, 1)
    )  # i32[S, K] with features.drafts, else empty; index in D of each guess of a sequence, in order; then -1

    metadata: tuple[Mapping[str, Array], ...] = ()  # AttentionBackend.metadata, one per KV group; filled by the runner
    extras: Mapping[str, Array] = field(default_factory=dict)  # features that own their arrays (draft tokens, adapter slots)

    def infer_features(self, logprobs: int = -1, score: int = -1, drafts: int = 0) -> Features:
        """What this (host) batch's arrays ask for; logprob counts and K - 1 are the caller's to say. For tests and small tools:
        the scheduler keeps its features up to date as sequences come and go."""
        s = self.sampling
        return Features(
            random=bool((s.temperature > 0).any()),
            truncate=bool(((s.top_k > 0) | (s.top_p < 1) | (s.min_p > 0)).any()),
            lookback=bool(self.bad_row.size or ((s.repetition != 1) | (s.presence != 0) | (s.frequency != 0)).any()),
            bias=bool(self.bias_row.size),
            mask=self.mask is not None,
            logprobs=logprobs,
            score=score if self.score_rows.size else -1,
            drafts=drafts if self.draft_row.size else 0,
        )

    def map(self, f: Callable[[Array], Array]) -> StepBatch:
        """The same batch with `f` applied to every array: how a backend moves it to its device."""
        mapped: StepBatch = _map(self, f)
        return mapped

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Every array with its dotted name, in a fixed order (the order `pack` lays them out)."""
        yield from _arrays("", self)

    def pad(self, shape: StepShape) -> StepBatch:
        """This (host) batch padded to a bucket. Padding tokens and sequences use the scratch slot and block. The flat lists
        that are not empty grow to powers of two, so that there are few lengths of them."""
        extra_t, extra_s = shape.tokens - self.tokens.shape[0], shape.seqs - self.slots.shape[0]
        if extra_t < 0 or extra_s < 0 or (extra_t and not extra_s):
            raise ValueError(f"batch of {self.tokens.shape[0]} tokens, {self.slots.shape[0]} sequences does not pad to {shape}")
        spare = self.slots.shape[0]  # the first padding sequence owns every padding token
        filler = SamplingArrays.greedy(extra_s)
        sampling = SamplingArrays(
            **{f.name: np.concatenate([getattr(self.sampling, f.name), getattr(filler, f.name)]) for f in fields(filler)}
        )
        query = np.zeros(extra_s, np.int32)
        if extra_s:
            query[0] = extra_t
        last = np.full(extra_s, shape.tokens - 1, np.int32)
        if shape.uniform and extra_s:
            query[:] = shape.tokens // shape.seqs
            last = self.tokens.shape[0] + np.cumsum(query, dtype=np.int32) - 1
        owner = np.repeat(np.arange(spare, spare + extra_s, dtype=np.int32), query)
        first = np.cumsum(query) - query
        return replace(
            self,
            tokens=_grow(self.tokens, extra_t),
            token_seq=np.concatenate([self.token_seq, owner]),
            positions=np.concatenate(
                [self.positions, np.arange(extra_t, dtype=np.int32) - np.repeat(first, query).astype(np.int32)]
            ),
            slots=_grow(self.slots, extra_s, SCRATCH),
            context=_grow(self.context, extra_s),
            query=np.concatenate([self.query, query]),
            last_row=np.concatenate([self.last_row, last]).astype(np.int32),
            emit=_grow(self.emit, extra_s),
            block_tables=tuple(_grow_table(t, extra_s, shape.blocks) for t in self.block_tables),
            sampling=sampling,
            uniform=self.uniform if shape.uniform else 0,  # else one padding sequence owns as many tokens as are missing
            mask=None if self.mask is None else np.pad(self.mask, ((0, extra_s), (0, 0)), constant_values=0xFFFFFFFF),
            bias_row=_even(self.bias_row), bias_token=_even(self.bias_token), bias_value=_even(self.bias_value),
            bad_row=_even(self.bad_row), bad_words=_even_words(self.bad_words),
            history_slot=_even(self.history_slot, SCRATCH), history_pos=_even(self.history_pos),
            history_token=_even(self.history_token),
            score_rows=_even(self.score_rows), score_targets=_even(self.score_targets),
            draft_row=_even(self.draft_row, 1),
            draft_pick=_grow(self.draft_pick, extra_s, -1) if self.features.drafts else self.draft_pick,
        )  # fmt: skip

    def check(self) -> None:
        """Raise ValueError, naming the field, if the parts do not fit together. For tests and debug runs."""
        T, S = self.tokens.shape[0], self.slots.shape[0]
        for name, want in (("token_seq", T), ("positions", T), ("context", S), ("query", S), ("last_row", S), ("emit", S)):
            if getattr(self, name).shape != (want,):
                raise ValueError(f"StepBatch.{name}: shape {getattr(self, name).shape}, expected ({want},)")
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
        if self.features.drafts and self.draft_pick.shape != (S, self.features.drafts + 1):
            raise ValueError(f"StepBatch.draft_pick: shape {self.draft_pick.shape}, expected ({S}, {self.features.drafts + 1})")
        counts = (self.draft_pick >= 0).sum(1)
        ends = np.repeat(self.last_row[: counts.size], counts) - np.repeat(np.cumsum(counts), counts) + 1
        known = self.query[: counts.size] - counts
        if (known < (counts > 0)).any() or not np.array_equal(self.draft_row[: ends.size], ends + np.arange(ends.size)):
            raise ValueError("StepBatch.draft_row: not the last tokens of their sequences, after one that is known")
        if len(set(self.slots.tolist()) - {SCRATCH}) != int((self.slots != SCRATCH).sum()):
            raise ValueError("StepBatch.slots: two sequences share a slot")


@dataclass(slots=True)
class Logprobs:
    """Log probabilities (or logits, by the engine's logprobs mode) of N rows: the chosen token, then the k best."""

    tokens: Array  # i32[N, 1 + k]
    values: Array  # f32[N, 1 + k]
    ranks: Array  # i32[N]; 1 = the chosen token was the most likely


@dataclass(slots=True)
class StepResult:
    """What a step gives back, row by row as in the batch."""

    tokens: Array  # i32[S, K]
    counts: Array  # i32[S]; how many of the K are real: one more than guesses that were right (0 where emit was False)
    logprobs: Logprobs | None = None  # N = S
    score: Logprobs | None = None  # N = P; the prompt tokens of score_rows
    invalid: Array | None = None  # bool[S]; logits held NaN or +inf: the row's token means nothing
    pooled: Array | None = None  # f32[S, H]; a vector per sequence, of models that give those: then tokens mean nothing
    extras: Mapping[str, Array] = field(default_factory=dict)


State = Any
"""What a step reads and returns: the KV cache per layer and the token history. A pytree of the backend's arrays."""
Params = Any
"""The weights: nested dicts of the backend's arrays or packed weights."""
Step = Callable[[Params, State, StepBatch], tuple[State, StepResult]]


@dataclass(slots=True)
class StateBox:
    """The one owner of the live state. Every executable of a device reads `value` and puts back what its step
    returned; nobody else keeps a reference across a call (a backend may reuse the old state's memory)."""

    value: State


Layout = tuple[tuple[str, str, tuple[int, ...], int], ...]
"""Where each array of a batch lies in one buffer: (name, dtype, shape, byte offset), 16-byte aligned, in `arrays` order."""


def lay_out(batch: StepBatch) -> tuple[Layout, int]:
    """The layout of a (host) batch's arrays in one buffer, and the buffer's bytes."""
    layout, offset = [], 0
    for name, a in batch.arrays():
        layout.append((name, a.dtype.str, a.shape, offset))
        offset += -(-a.nbytes // 16) * 16
    return tuple(layout), offset


def pack(batch: StepBatch, layout: Layout, buffer: np.ndarray) -> None:
    """The batch's bytes into `buffer` (u8, at least as long as `lay_out` says): then one copy moves all of it."""
    for (_, a), (_, _, _, at) in zip(batch.arrays(), layout, strict=True):
        buffer[at : at + a.nbytes] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)


def unpack(batch: StepBatch, arrays: Mapping[str, Array]) -> StepBatch:
    """The same batch with its arrays replaced by those of these (dotted) names: views of a buffer that `pack` filled."""
    rebuilt: StepBatch = _replace("", batch, arrays)
    return rebuilt


def statics(batch: StepBatch) -> tuple[Any, ...]:
    """What a step may depend on beside arrays: with an equal layout and equal statics, a captured step stays right."""
    widths = tuple(t.blocks for t in batch.block_tables if isinstance(t, TableRows))
    return (batch.uniform, batch.features, widths, *(tuple(_constants(p)) for p in (*batch.metadata, batch.extras)))


def _grow(a: Array, n: int, value: int = 0) -> Array:
    return np.concatenate([a, np.full((n, *a.shape[1:]), value, a.dtype)])


def _grow_table(t: Array, rows: int, blocks: int) -> Array:
    if isinstance(t, TableRows):
        return replace(t, slots=_grow(t.slots, rows, SCRATCH), blocks=blocks)
    return np.pad(t, ((0, rows), (0, blocks - t.shape[1])), constant_values=SCRATCH)


def _even(a: Array, value: int = 0) -> Array:
    """A list grown to a power of two, at least LIST; an empty one stays empty."""
    return _grow(a, _power(len(a)) - len(a), value) if len(a) else a


def _even_words(words: Array) -> Array:
    """Rows as `_even` does; columns grow on the left to 1 + a power of two. -1 matches anything."""
    if not len(words):
        return words
    width = words.shape[1]
    wider = 1 << (width - 2).bit_length() if width > 1 else 0
    words = np.pad(words, ((0, 0), (1 + wider - width, 0)), constant_values=-1)
    return _even(words, -1)


def _power(n: int) -> int:
    return max(LIST, 1 << (n - 1).bit_length())


def _map(x: Any, f: Callable[[Array], Array]) -> Any:
    if isinstance(x, StepBatch | SamplingArrays):
        return type(x)(**{d.name: _map(getattr(x, d.name), f) for d in fields(x)})
    if isinstance(x, tuple):
        return tuple(_map(v, f) for v in x)
    if isinstance(x, Mapping):
        return {k: _map(v, f) for k, v in x.items()}
    return x if x is None or isinstance(x, int | Features | TableRows) else f(x)


def _arrays(name: str, x: Any) -> Iterator[tuple[str, Array]]:
    if isinstance(x, StepBatch | SamplingArrays):
        for d in fields(x):
            yield from _arrays(f"{name}.{d.name}" if name else d.name, getattr(x, d.name))
    elif isinstance(x, tuple):
        for i, v in enumerate(x):
            yield from _arrays(f"{name}.{i}", v)
    elif isinstance(x, Mapping):
        for k in sorted(x):
            yield from _arrays(f"{name}.{k}", x[k])
    elif x is not None and not isinstance(x, int | Features | TableRows):
        yield name, x


def _replace(name: str, x: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(x, StepBatch | SamplingArrays):
        dot = f"{name}." if name else ""
        return type(x)(**{d.name: _replace(dot + d.name, getattr(x, d.name), arrays) for d in fields(x)})
    if isinstance(x, tuple):
        return tuple(_replace(f"{name}.{i}", v, arrays) for i, v in enumerate(x))
    if isinstance(x, Mapping):
        return {k: _replace(f"{name}.{k}", v, arrays) for k, v in x.items()}
    return x if x is None or isinstance(x, int | Features | TableRows) else arrays[name]


def _constants(x: Any) -> Iterator[int]:
    """Whole numbers in a plan, and the keys they belong to by their order."""
    if isinstance(x, Mapping):
        for k in sorted(x):
            yield from _constants(x[k])
    elif isinstance(x, tuple):
        for v in x:
            yield from _constants(v)
    elif isinstance(x, int):
        yield x
