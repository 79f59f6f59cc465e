"""What padding a batch to a bucket may touch, and when a bucket holds a batch: nothing of a sequence's own ever moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

from thalweg.hal.fields import LIST, Array, Part, dim, dims
from thalweg.hal.parts.bad_words import BadWords
from thalweg.hal.parts.bias import Bias
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.parts.history import History
from thalweg.hal.parts.mask import Mask
from thalweg.hal.parts.penalties import Penalties
from thalweg.hal.parts.scores import Scores
from thalweg.hal.step import SCRATCH, Features, SamplingArrays, StepBatch, StepShape, lay_out, pack, unpack

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
    parts = {
        "bias": Bias(np.ones(3, I32), np.full(3, 6, I32), np.ones(3, np.float32)),
        "history": History(np.full(n, 2, I32), np.arange(n, dtype=I32), np.full(n, 5, I32)),
        "bad": BadWords(np.ones(2, I32), words), "none": Scores(*[np.empty(0, I32)] * 2),
    }  # fmt: skip
    batch = batch_of([1, 1], parts=tuple(parts.values()))
    padded = batch.pad(StepShape(4, 4, 2, True))
    padded.check()
    bias, history, bad = (padded.get(kind) for kind in (Bias, History, BadWords))
    assert bias.row.shape == bias.token.shape == bias.value.shape == (LIST,)
    assert not bias.value[3:].any()
    assert history.slot.shape == (16,)
    assert (history.slot[n:] == SCRATCH).all()
    assert history.token[:n].tolist() == parts["history"].token.tolist()
    assert bad.words.shape == (LIST, 3)
    assert bad.words[:2].tolist() == words.tolist()
    assert (bad.words[2:] == -1).all()  # no last token: nothing is banned
    assert padded.get(Scores).row.shape == (0,)
    parts["bad"].words = np.pad(words, ((0, 0), (1, 0)), constant_values=2)
    longer = batch.pad(StepShape(4, 4, 2, True)).get(BadWords)
    assert longer.words.shape == (LIST, 5)
    assert longer.words[:2].tolist() == [[-1, 2, 7, 8, 9], [-1, 2, -1, 3, 4]]


@dataclass(slots=True)
class Everything(Part):
    """A dimension of every kind."""

    places: Array = dim("3 T", I32, fill=7)
    kinds: Array = dim("S", I32, fill=-2)
    rows: Array = dim("N wide", np.float32, fill=0.5)
    targets: Array = dim("N", I32, fill=-1)
    tail: Array = dim("S <length", I32, fill=9)
    table: Array = dim("S B", I32)


def everything(tokens: int, seqs: int, n: int = 3, wide: int = 2, length: int = 4, blocks: int = 2) -> Everything:
    return Everything(
        np.ones((3, tokens), I32), np.ones(seqs, I32), np.ones((n, wide), np.float32), np.ones(n, I32),
        np.ones((seqs, length), I32), np.ones((seqs, blocks), I32),
    )  # fmt: skip


def test_the_arrays_of_any_part_are_padded_as_they_are_declared() -> None:
    """A feature that `pad` knows nothing of: its arrays grow with the batch, by what fills them."""
    padded = batch_of([3, 1], parts=(everything(4, 2),)).pad(StepShape(16, 3, 5))
    padded.check()
    part = padded.get(Everything)
    assert part is not None
    grown = {"places": (3, 16), "kinds": (3,), "rows": (8, 2), "targets": (8,), "tail": (3, 5), "table": (3, 5)}
    assert {name: a.shape for name, a in ((d, getattr(part, d)) for d in dims(Everything))} == grown
    assert part.places[:, :4].min() == 1
    assert (part.places[:, 4:] == 7).all()
    assert part.kinds.tolist() == [1, 1, -2]
    assert (part.rows[3:] == 0.5).all()
    assert (part.targets[3:] == -1).all()
    assert part.tail.tolist() == [[9, 1, 1, 1, 1]] * 2 + [[9] * 5]
    assert part.table.tolist() == [[1, 1, 0, 0, 0]] * 2 + [[0] * 5]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"places": np.ones((2, 4), I32)}, r"Everything\.places: shape \(2, 4\), expected \(3, 4\)"),
        ({"kinds": np.ones(3, I32)}, r"Everything\.kinds: shape \(3,\), expected \(2\)"),
        ({"targets": np.ones(4, I32)}, r"Everything\.targets: shape \(4,\), expected \(3\)"),
        ({"rows": np.ones(3, np.float32)}, r"Everything\.rows: shape \(3,\), expected \(N, wide\)"),
        ({"kinds": np.ones(2, np.int64)}, r"Everything\.kinds: dtype int64, expected int32"),
    ],
)
def test_arrays_that_are_not_as_declared_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        batch_of([3, 1], parts=(replace(everything(4, 2), **change),))


def test_two_parts_of_a_kind_are_one_too_many() -> None:
    with pytest.raises(ValueError, match="two of one kind"):
        batch_of([3, 1], parts=(everything(4, 2), everything(4, 2)))


def test_a_blank_part_needs_every_length_and_changes_nothing() -> None:
    part = Everything.blank({"T": 4, "S": 2, "B": 1, "N": 1, "wide": 3, "length": 2}, level=6)
    assert (part.rows.shape, part.level) == ((1, 3), 6)
    assert set(part.kinds.tolist()) == {-2}
    with pytest.raises(KeyError, match="wide"):
        Everything.blank({"T": 4, "S": 2, "B": 1, "N": 1})


def test_padding_leaves_drafts_where_they_are_and_adds_none() -> None:
    pick = np.array([[0, 1, -1], [-1, -1, -1], [2, -1, -1]], I32)
    parts = (Drafts(np.array([1, 2, 5], I32), pick, level=2),)
    padded = batch_of([3, 1, 2], [4, 9, 7], parts=parts).pad(StepShape(16, 6, 5))
    padded.check()
    drafts = padded.get(Drafts)
    assert drafts.row.shape == (LIST,)
    assert drafts.row[:3].tolist() == [1, 2, 5]
    assert drafts.pick[:3].tolist() == pick.tolist()
    assert (drafts.pick[3:] == -1).all()


@pytest.mark.parametrize(
    ("row", "pick", "words"),
    [
        ([1, 2, 5], [[0, 1], [-1, -1], [2, -1]], r"Drafts\.pick"),
        ([0, 2, 5], [[0, 1, -1], [-1, -1, -1], [2, -1, -1]], r"Drafts\.row"),
        ([1, 2, 3], [[0, 1, -1], [2, -1, -1], [-1, -1, -1]], r"Drafts\.row"),
    ],
)
def test_drafts_that_are_not_the_last_tokens_are_found(row: list[int], pick: list[list[int]], words: str) -> None:
    drafts = Drafts(np.array(row, I32), np.array(pick, I32), level=2)
    with pytest.raises(ValueError, match=words):
        batch_of([3, 1, 2], [4, 9, 7], parts=(drafts,))


def test_a_mask_allows_padding_everything() -> None:
    parts = Mask(np.array([[5]], np.uint32), np.empty((0, 1), np.uint32))
    padded = batch_of([1], parts=(parts,)).pad(StepShape(2, 2, 2, True)).get(Mask)
    assert padded.allowed.tolist() == [[5], [0xFFFFFFFF]]
    assert padded.ahead.shape == (0, 1)


def test_a_mask_has_a_row_for_each_draft_or_for_none() -> None:
    drafts = Drafts(np.array([1, 2], I32), np.array([[0, 1, -1]], I32), level=2)
    for rows, good in ((0, True), (1, False), (2, True)):
        parts = (drafts, Mask(np.ones((1, 1), np.uint32), np.ones((rows, 1), np.uint32)))
        if good:
            padded = batch_of([3], parts=parts).pad(StepShape(4, 2, 2))
            assert padded.get(Mask).ahead.shape[0] in (0, padded.get(Drafts).row.shape[0])
        else:
            with pytest.raises(ValueError, match=r"Mask\.ahead: 1 rows"):
                batch_of([3], parts=parts)


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
    for more in (Features(truncate=True), Features(random=True, logprobs=4), Features(random=True).plus(Scores)):
        assert not some.covers(more)
    scored = some.plus(Scores, 5).plus(Bias)
    assert (scored.level(Scores), scored.level(Bias), scored.level(Mask)) == (5, 0, -1)
    assert scored == some.plus(Bias).plus(Scores, 2).plus(Scores, 5)
    assert scored.covers(some.plus(Scores, 4))
    for more in (some.plus(Scores, 6), some.plus(Mask), scored.plus(Drafts, 2)):
        assert not scored.covers(more)


def test_only_what_changes_logits_needs_them() -> None:
    """A step that takes every row's argmax, whoever scores prompts or verifies drafts."""
    assert Features().plus(Scores, 3).plus(Drafts, 2).plus(History).plain
    for kind in (Bias, BadWords, Mask, Penalties):
        assert not Features().plus(kind).plain


def test_arrays_of_a_batch_lie_apart_and_aligned_in_one_buffer() -> None:
    one = np.ones(3, I32)
    batch = batch_of(
        [3, 1, 1], parts=(Mask(np.ones((3, 5), np.uint32), np.ones((0, 5), np.uint32)), Bias(one, one, np.ones(3, np.float32)))
    )
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
    names = [name for name, _ in batch.arrays()]
    assert {"tokens", "block_tables.0", "sampling.seed", "parts.Mask.allowed", "parts.Bias.row"} <= set(names)
    assert len(set(names)) == len(names)
    again = unpack(batch, {name: name for name in names})  # type: ignore[misc]
    assert (again.tokens, again.get(Bias).value, again.block_tables) == ("tokens", "parts.Bias.value", ("block_tables.0",))


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
