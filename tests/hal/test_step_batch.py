"""What padding a batch to a bucket may touch, and when a bucket holds a batch: nothing of a sequence's own ever moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from thalweg.hal.step import LIST, SCRATCH, Features, SamplingArrays, StepBatch, StepShape, lay_out, pack

I32 = np.int32


def batch_of(query: list[int], context: list[int] | None = None, **more: Any) -> StepBatch:
    """Sequences in slots 1, 2, ..., each with two blocks of its own."""
    n, q = len(query), np.array(query, I32)
    c = np.array(context or [0] * n, I32)
    start = np.cumsum(q) - q
    made = StepBatch(
        tokens=np.arange(100, 100 + q.sum(), dtype=I32), token_seq=np.repeat(np.arange(n), q).astype(I32),
        positions=(np.arange(q.sum()) - np.repeat(start - c, q)).astype(I32), slots=np.arange(1, n + 1, dtype=I32),
        context=c, query=q, last_row=(np.cumsum(q) - 1).astype(I32), emit=np.ones(n, bool),
        block_tables=(np.arange(1, 2 * n + 1, dtype=I32).reshape(n, 2),), sampling=SamplingArrays.greedy(n),
        uniform=query[0] if len(set(query)) == 1 else 0, **more,
    )  # fmt: skip
    made.check()
    return made


SHAPES = {
    "mixed": ([3, 1, 4], [0, 7, 2], StepShape(16, 6, 5)),
    "one padding sequence": ([3, 1], [0, 7], StepShape(16, 3, 2)),
    "decodes in a mixed bucket": ([1, 1], [4, 9], StepShape(16, 4, 2)),
    "full of tokens": ([5, 3], [0, 0], StepShape(8, 4, 2)),
    "decode": ([1, 1, 1], [9, 0, 4], StepShape(8, 8, 3, True)),
    "verify": ([3, 3], [9, 1], StepShape(12, 4, 2, True)),
    "exact": ([1, 1], [2, 3], StepShape(2, 2, 2, True)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_padding_keeps_every_sequence_and_adds_scratch_alone(name: str) -> None:
    query, context, shape = SHAPES[name]
    batch = batch_of(query, context)
    assert shape.fits(batch)
    padded = batch.pad(shape)
    padded.check()
    tokens, seqs = batch.tokens.shape[0], batch.slots.shape[0]
    assert (padded.tokens.shape[0], padded.slots.shape[0], padded.block_tables[0].shape) == (
        shape.tokens, shape.seqs, (shape.seqs, shape.blocks),
    )  # fmt: skip
    for field in ("tokens", "token_seq", "positions"):
        assert getattr(padded, field)[:tokens].tolist() == getattr(batch, field).tolist(), field
    for field in ("slots", "context", "query", "last_row", "emit"):
        assert getattr(padded, field)[:seqs].tolist() == getattr(batch, field).tolist(), field
    assert padded.block_tables[0][:seqs, :2].tolist() == batch.block_tables[0].tolist()
    assert (padded.slots[seqs:] == SCRATCH).all()
    assert (padded.block_tables[0][seqs:] == SCRATCH).all()
    assert (padded.block_tables[0][:, 2:] == SCRATCH).all()
    assert not padded.emit[seqs:].any()
    assert (padded.token_seq[tokens:] >= seqs).all()
    if shape.uniform:
        assert set(padded.query.tolist()) == {padded.uniform} == {shape.tokens // shape.seqs}
    else:
        assert padded.uniform == 0
    for field in fields(SamplingArrays):
        greedy = getattr(SamplingArrays.greedy(shape.seqs - seqs), field.name)
        assert np.array_equal(getattr(padded.sampling, field.name)[seqs:], greedy), field.name


def test_flat_lists_grow_to_few_lengths_by_entries_that_do_nothing() -> None:
    n, words = 11, np.array([[7, 8, 9], [-1, 3, 4]], I32)
    lists = {"history_slot": np.full(n, 2, I32), "history_pos": np.arange(n, dtype=I32), "history_token": np.full(n, 5, I32)}
    batch = batch_of(
        [1, 1], bias_row=np.ones(3, I32), bias_token=np.full(3, 6, I32), bias_value=np.ones(3, np.float32),
        bad_row=np.ones(2, I32), bad_words=words, **lists,
    )  # fmt: skip
    padded = batch.pad(StepShape(4, 4, 2, True))
    assert padded.bias_row.shape == padded.bias_token.shape == padded.bias_value.shape == (LIST,)
    assert not padded.bias_value[3:].any()
    assert padded.history_slot.shape == (16,)
    assert (padded.history_slot[n:] == SCRATCH).all()
    assert padded.history_token[:n].tolist() == lists["history_token"].tolist()
    assert padded.bad_words.shape == (LIST, 3)
    assert padded.bad_words[:2].tolist() == words.tolist()
    assert (padded.bad_words[2:] == -1).all()  # no last token: nothing is banned
    longer = replace(batch, bad_words=np.pad(words, ((0, 0), (1, 0)), constant_values=2)).pad(StepShape(4, 4, 2, True))
    assert longer.bad_words.shape == (LIST, 5)
    assert longer.bad_words[:2].tolist() == [[-1, 2, 7, 8, 9], [-1, 2, -1, 3, 4]]
    assert batch.pad(StepShape(2, 2, 2, True)).score_rows.shape == (0,)


def test_padding_leaves_drafts_where_they_are_and_adds_none() -> None:
    pick = np.array([[0, 1, -1], [-1, -1, -1], [2, -1, -1]], I32)
    drafts = {"draft_row": np.array([1, 2, 5], I32), "draft_pick": pick, "features": Features(drafts=2)}
    padded = batch_of([3, 1, 2], [4, 9, 7], **drafts).pad(StepShape(16, 6, 5))
    padded.check()
    assert padded.draft_row.shape == (LIST,)
    assert padded.draft_row[:3].tolist() == [1, 2, 5]
    assert padded.draft_pick[:3].tolist() == pick.tolist()
    assert (padded.draft_pick[3:] == -1).all()


@pytest.mark.parametrize(
    ("row", "pick", "words"),
    [
        ([1, 2, 5], [[0, 1], [-1, -1], [2, -1]], "draft_pick"),
        ([0, 2, 5], [[0, 1, -1], [-1, -1, -1], [2, -1, -1]], "draft_row"),
        ([1, 2, 3], [[0, 1, -1], [2, -1, -1], [-1, -1, -1]], "draft_row"),
    ],
)
def test_drafts_that_are_not_the_last_tokens_are_found(row: list[int], pick: list[list[int]], words: str) -> None:
    drafts = {"draft_row": np.array(row, I32), "draft_pick": np.array(pick, I32), "features": Features(drafts=2)}
    with pytest.raises(ValueError, match=words):
        batch_of([3, 1, 2], [4, 9, 7], **drafts)


def test_a_mask_allows_padding_everything() -> None:
    padded = batch_of([1], mask=np.array([[5]], np.uint32)).pad(StepShape(2, 2, 2, True))
    assert padded.mask is not None
    assert padded.mask.tolist() == [[5], [0xFFFFFFFF]]


@pytest.mark.parametrize(
    ("query", "shape"),
    [
        ([3, 1], StepShape(16, 2, 2)),  # padding tokens would have no sequence
        ([3, 1], StepShape(3, 4, 2)),
        ([1, 1, 1], StepShape(4, 2, 2)),
        ([1, 1], StepShape(4, 4, 1)),  # tables too wide
        ([3, 1], StepShape(8, 8, 2, True)),  # not decodes
        ([2, 2], StepShape(8, 8, 2, True)),
        ([1, 1], StepShape(8, 4, 2, True)),  # decodes, where two tokens each are verified
    ],
)
def test_a_bucket_that_does_not_hold_a_batch_says_so(query: list[int], shape: StepShape) -> None:
    assert not shape.fits(batch_of(query))


def test_padding_where_it_does_not_fit_is_an_error_in_words() -> None:
    for query, shape in (([3, 1], StepShape(16, 2, 2)), ([3, 1], StepShape(3, 4, 2)), ([1, 1, 1], StepShape(4, 2, 2))):
        with pytest.raises(ValueError, match="does not pad to"):
            batch_of(query).pad(shape)


def test_features_cover_what_they_have_and_nothing_more() -> None:
    some = Features(random=True, logprobs=3)
    assert some.covers(some)
    assert some.covers(Features())
    assert some.covers(Features(logprobs=0))
    for more in (Features(truncate=True), Features(random=True, logprobs=4), Features(random=True, score=0)):
        assert not some.covers(more)


def test_arrays_of_a_batch_lie_apart_and_aligned_in_one_buffer() -> None:
    batch = batch_of([3, 1, 1], mask=np.ones((3, 5), np.uint32), bias_value=np.ones(3, np.float32))
    layout, n = lay_out(batch)
    ends = 0
    for _, kind, shape, at in layout:
        assert at % 16 == 0
        assert at >= ends
        ends = at + np.dtype(kind).itemsize * int(np.prod(shape))
    assert ends <= n
    buffer = np.zeros(n, np.uint8)
    pack(batch, layout, buffer)
    for (name, array), (_, kind, shape, at) in zip(batch.arrays(), layout, strict=True):
        size = np.dtype(kind).itemsize * int(np.prod(shape))
        assert np.array_equal(buffer[at : at + size].view(kind).reshape(shape), array), name


@pytest.mark.parametrize(
    ("name", "break_it"),
    [
        ("query", lambda b: b.query.__setitem__(0, 9)), ("positions", lambda b: b.positions.__setitem__(1, 5)),
        ("last_row", lambda b: b.last_row.__setitem__(0, 0)), ("token_seq", lambda b: b.token_seq.__setitem__(0, 1)),
        ("slots", lambda b: b.slots.__setitem__(1, 1)), ("emit", lambda b: setattr(b, "emit", b.emit[:1])),
    ],
)  # fmt: skip
def test_check_names_the_part_that_does_not_fit(name: str, break_it: Callable[[StepBatch], None]) -> None:
    batch = batch_of([3, 1])
    break_it(batch)
    with pytest.raises(ValueError, match=rf"StepBatch\.{name}"):
        batch.check()
