"""Steps of every kind that serving has, made of scratch rows. A device runs them before the first request, where it compiles
or records launches on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from thalweg.engine.control.cache.groups import policy
from thalweg.features import all_features
from thalweg.hal.fields import Part, dims
from thalweg.hal.kv import KVSpec
from thalweg.hal.parts.adapters import Adapters
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.parts.each_token import EachToken
from thalweg.hal.parts.proposing import Proposing
from thalweg.hal.parts.scores import Scores
from thalweg.hal.platform import Limits
from thalweg.hal.step import SCRATCH, Features, SamplingArrays, StepBatch, TableRows
from thalweg.plugins import import_attribute

I32 = np.int32
SHORT = 24
"""Tokens of a short prompt: no power of two, and no multiple for which a kernel may be specialised."""


@dataclass(frozen=True, slots=True)
class Table:
    """The form of a KV group's block table in batches."""

    columns: int = 0
    """Columns, if constant. 0: one for each block of the longest sequence in the step."""
    kept: tuple[int, int] | None = None
    """Rows and columns of the whole table, where the device keeps it."""

    def scratch(self, seqs: int, blocks: int) -> np.ndarray | TableRows:
        """The table of a step in which the longest sequence has so many blocks, all scratch."""
        if self.kept is not None:
            return replace(TableRows.scratch(seqs, self.kept), blocks=min(blocks, self.kept[1]))
        return np.full((seqs, self.columns or blocks), SCRATCH, I32)


def tables(groups: Iterable[KVSpec], slots: int, max_len: int, keeps: bool) -> list[Table]:
    """The table of each group. slots: with scratch. keeps: does the device keep tables? Only those with growing rows."""
    fixed = [(policy(g).table_columns(g), g.block_tokens) for g in groups]
    return [Table(columns, (slots, -(-max_len // each)) if keeps and not columns else None) for columns, each in fixed]


def limits(groups: Sequence[KVSpec], tokens: int, seqs: int, max_len: int, drafts: int = 0) -> Limits:
    """The limits of every step. Of several block sizes the smallest counts, as it has the widest tables: no table has more
    columns than that many blocks, even with a constant number of columns."""
    least, most = min(g.block_tokens for g in groups), max(policy(g).table_columns(g) for g in groups)
    return Limits(tokens, seqs, max_len, min(least, max(1, -(-max_len // most))) if most else least, drafts)


def scratch(query: Sequence[int], tables: Sequence[Table], blocks: int, *, uniform: bool = False) -> StepBatch:
    """Sequences of so many new tokens and no others, which read and write scratch and sample nothing. blocks: of the longest.
    uniform: all have equally many tokens."""
    seqs, tokens, counts = len(query), sum(query), np.array(query, I32)
    first = np.cumsum(counts, dtype=I32) - counts
    return StepBatch(
        tokens=np.zeros(tokens, I32), token_seq=np.repeat(np.arange(seqs, dtype=I32), counts),
        positions=np.arange(tokens, dtype=I32) - np.repeat(first, counts), slots=np.full(seqs, SCRATCH, I32),
        context=np.zeros(seqs, I32), query=counts, last_row=first + counts - 1, emit=np.zeros(seqs, bool),
        block_tables=tuple(t.scratch(seqs, blocks) for t in tables),
        sampling=SamplingArrays.greedy(seqs), uniform=query[0] if uniform else 0,
    )  # fmt: skip


def asking(batch: StepBatch, features: Features, sizes: Mapping[str, int]) -> StepBatch:
    """The batch with the features and their parts, which change nothing. sizes: lengths of dimensions that parts name."""
    known = {"T": batch.tokens.shape[0], "S": batch.slots.shape[0], **sizes}
    without = {**known, "N": 0} if features.level(Drafts) < 0 else known
    parts = tuple(kind.blank(without if _has_draft_rows(kind) else known, level) for kind, level in features.parts)
    return replace(batch, features=features, parts=parts)


def _has_draft_rows(kind: type[Part]) -> bool:
    """Does a part have arrays of rows for drafts, next to those of sequences?"""
    return kind.drafts and any("S" in d.axes for d in dims(kind).values())


def sizes(vocab: int, words: int = 3) -> dict[str, int]:
    """Lengths that parts of rehearsed steps have: lists of one entry. words: tokens of a bad word."""
    return {"N": 1, "words": -(-vocab // 32), "length": words}


def rehearsal_parts(prompts: bool, logprobs: int = -1, adapters: bool = False) -> list[tuple[type[Part], int]]:
    """Kinds of parts in rehearsed steps, and their levels: parts with known dimensions only. prompts: include parts of steps
    with prompts. adapters: does the engine have slots for adapters?"""
    kinds: list[type[Part]] = [import_attribute(f.part) for f in all_features()]
    kinds.remove(EachToken)  # only pooling models have it
    kinds.remove(Proposing)  # of engines with a proposer
    if not adapters:
        kinds.remove(Adapters)
    known = {"T", "S", *sizes(32)}
    kinds = [k for k in kinds if all(a.isdecimal() or a.lstrip("<") in known for d in dims(k).values() for a in d.axes)]
    return [(k, max(logprobs, 0) if k is Scores else 0) for k in kinds if prompts or not k.prompts]


def prompts(
    limits: Limits, tables: Sequence[Table], vocab: int, logprobs: int, adapters: bool = False
) -> list[Callable[[], StepBatch]]:
    """The largest step first, which needs most memory. Then prompts with and without decodes, over short and the longest
    tables, greedy, sampled, and with all features of sampling. logprobs: the most that a request may have."""
    most = _everything(logprobs, prompts=True, adapters=adapters)
    kinds = (Features(), Features(random=True), Features(random=True, truncate=True), most)
    short = min(SHORT, limits.tokens, limits.max_len)
    longest = -(-limits.max_len // limits.block_tokens)
    out: list[Callable[[], StepBatch]] = [partial(_batch, _largest(limits), tables, longest, kinds[2], vocab)]
    for query in ([short], [max(1, short - 2), 1, 1]):
        if len(query) <= limits.seqs and sum(query) <= limits.tokens:
            for width in (-(-short // limits.block_tokens), longest):
                out += [partial(_batch, query, tables, width, f, vocab) for f in kinds]
    return out


def decodes(
    limits: Limits, tables: Sequence[Table], vocab: int, logprobs: int, adapters: bool = False
) -> list[Callable[[], StepBatch]]:
    """One decoding sequence, with each of the rare features, and with all combined."""
    kinds = [Features().plus(kind, level) for kind, level in rehearsal_parts(prompts=False, adapters=adapters)]
    kinds += [Features(logprobs=k) for k in sorted({0, logprobs}) if k <= logprobs]
    kinds.append(_everything(logprobs, prompts=False, adapters=adapters))
    return [partial(_batch, [1], tables, 1, f, vocab, True) for f in kinds]


def _everything(logprobs: int, prompts: bool, adapters: bool) -> Features:
    features = Features(True, True, logprobs)
    for kind, level in rehearsal_parts(prompts, logprobs, adapters):
        features = features.plus(kind, level)
    return features


def _largest(limits: Limits) -> list[int]:
    """New tokens of the most sequences of a step, filling the step."""
    query, left = [], min(limits.tokens, limits.seqs * limits.max_len)
    for others in reversed(range(min(limits.seqs, left))):
        query.append(min(limits.max_len, left - others))
        left -= query[-1]
    return query


def _batch(
    query: Sequence[int], tables: Sequence[Table], blocks: int, features: Features, vocab: int, uniform: bool = False
) -> StepBatch:
    return asking(scratch(query, tables, blocks, uniform=uniform), features, sizes(vocab))
