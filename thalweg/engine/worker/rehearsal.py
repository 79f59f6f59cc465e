"""Steps of every kind that serving has, made of scratch rows: what a device runs before the first request, where what a step
launches is made when it is first met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from thalweg.hal.platform import Limits
from thalweg.hal.step import SCRATCH, Features, SamplingArrays, StepBatch, TableRows

I32 = np.int32
SHORT = 24
"""Tokens of a short prompt: no power of two, and no multiple of one that a kernel might be made for apart."""


Table = tuple[int, int] | None
"""Rows and columns of the block tables that the device keeps; None = it keeps none."""


def scratch(
    query: Sequence[int], groups: int, blocks: int, *, uniform: bool = False, table: Table = None
) -> StepBatch:  # fmt: skip
    """Sequences of so many new tokens and no others, which read and write scratch and sample nothing. blocks: columns of the
    tables. uniform: all have as many."""
    seqs, tokens, counts = len(query), sum(query), np.array(query, I32)
    first = np.cumsum(counts, dtype=I32) - counts
    rows: np.ndarray | TableRows = np.full((seqs, blocks), SCRATCH, I32)
    if table is not None:
        rows = replace(TableRows.scratch(seqs, table), blocks=min(blocks, table[1]))
    return StepBatch(
        tokens=np.zeros(tokens, I32), token_seq=np.repeat(np.arange(seqs, dtype=I32), counts),
        positions=np.arange(tokens, dtype=I32) - np.repeat(first, counts), slots=np.full(seqs, SCRATCH, I32),
        context=np.zeros(seqs, I32), query=counts, last_row=first + counts - 1, emit=np.zeros(seqs, bool),
        block_tables=(rows,) * groups,
        sampling=SamplingArrays.greedy(seqs), uniform=query[0] if uniform else 0,
    )  # fmt: skip


def asking(batch: StepBatch, features: Features, vocab: int, words: int = 3) -> StepBatch:
    """The batch with the features, and what they read: lists of one entry, which changes nothing. words: tokens of a bad
    word."""
    one = np.zeros(1, I32)
    batch = replace(batch, features=features)
    if features.lookback:
        batch = replace(
            batch, bad_row=one, bad_words=np.full((1, words), -1, I32), history_slot=one, history_pos=one, history_token=one
        )
    if features.bias:
        batch = replace(batch, bias_row=one, bias_token=one, bias_value=np.zeros(1, np.float32))
    if features.mask:
        batch = replace(batch, mask=np.full((batch.slots.shape[0], -(-vocab // 32)), 0xFFFFFFFF, np.uint32))
    if features.score >= 0:
        batch = replace(batch, score_rows=one, score_targets=one)
    return batch


def prompts(limits: Limits, groups: int, vocab: int, logprobs: int, table: Table = None) -> list[Callable[[], StepBatch]]:
    """The largest step first, which needs most memory. Then prompts alone and beside decodes, over short and the longest
    tables, greedy, drawn, and with all that sampling can be asked for. logprobs: the most that a request may ask for."""
    most = _everything(logprobs, score=True)
    kinds = (Features(), Features(random=True), Features(random=True, truncate=True), most)
    short = min(SHORT, limits.tokens, limits.max_len)
    longest = -(-limits.max_len // limits.block_tokens)
    out: list[Callable[[], StepBatch]] = [partial(_batch, _largest(limits), groups, longest, kinds[2], vocab, table)]
    for query in ([short], [max(1, short - 2), 1, 1]):
        if len(query) <= limits.seqs and sum(query) <= limits.tokens:
            for width in (-(-short // limits.block_tokens), longest):
                out += [partial(_batch, query, groups, width, f, vocab, table) for f in kinds]
    return out


def decodes(limits: Limits, groups: int, vocab: int, logprobs: int, table: Table = None) -> list[Callable[[], StepBatch]]:
    """One sequence that decodes, with each of the things that few requests ask for, and with all of them."""
    kinds = [Features(lookback=True), Features(bias=True), Features(mask=True)]
    kinds += [Features(logprobs=k) for k in sorted({0, logprobs}) if k <= logprobs]
    kinds.append(_everything(logprobs, score=False))
    return [partial(_batch, [1], groups, 1, f, vocab, table, True) for f in kinds]


def _everything(logprobs: int, score: bool) -> Features:
    return Features(True, True, True, True, True, logprobs, logprobs if score else -1)


def _largest(limits: Limits) -> list[int]:
    """New tokens of as many sequences as one step may hold, and together as many."""
    query, left = [], min(limits.tokens, limits.seqs * limits.max_len)
    for others in reversed(range(min(limits.seqs, left))):
        query.append(min(limits.max_len, left - others))
        left -= query[-1]
    return query


def _batch(
    query: Sequence[int], groups: int, blocks: int, features: Features, vocab: int, table: Table,
    uniform: bool = False,
) -> StepBatch:  # fmt: skip
    return asking(scratch(query, groups, blocks, uniform=uniform, table=table), features, vocab)
