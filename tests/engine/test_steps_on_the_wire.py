"""Batches and results cross processes: what is read back is what was written, whatever features a step has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from thalweg.engine.ipc.codec import HEADER, Codec, FrameError
from thalweg.engine.ipc.steps import read_step, write_step
from thalweg.engine.worker.rehearsal import Table, scratch
from thalweg.features import all_features
from thalweg.hal.fields import Part, arrays, dims
from thalweg.hal.step import Features, Logprobs, StepBatch, StepResult, statics
from thalweg.plugins import import_attribute

CODEC = Codec[Any](Any)
PARTS: list[type[Part]] = [import_attribute(f.part) for f in all_features()]


def crossed(value: Any) -> Any:
    return read_step(CODEC.decode(CODEC.encode(write_step(value))[HEADER.size :]))


def assert_equal(got: Any, sent: Any) -> None:
    assert [(n, a.dtype, a.shape, a.tobytes()) for n, a in arrays(got)] == [
        (n, a.dtype, a.shape, a.tobytes()) for n, a in arrays(sent)
    ]


def batch_with(rng: np.random.Generator, kinds: list[type[Part]]) -> StepBatch:
    batch = scratch([3, 1], [Table(), Table(2)], 4)
    batch.tokens[:] = rng.integers(-1, 99, 4)
    batch.sampling.seed[:] = rng.integers(0, 1 << 30, (2, 2))
    parts = []
    for level, kind in enumerate(kinds):
        axes = {a.lstrip("<") for d in dims(kind).values() for a in d.axes if not a.isdecimal()}
        part = kind.blank({"T": 4, "S": 2, **dict.fromkeys(axes - {"T", "S"}, 3)}, level)
        for _, a in arrays(part):
            a[...] = rng.integers(0, 2, a.shape)
        parts.append(part)
    features = Features(random=True, logprobs=2)
    for part in parts:
        features = features.plus(type(part), part.level)
    return replace(batch, parts=tuple(parts), features=features, last_alone=True)


@pytest.mark.parametrize("kinds", [[], *([k] for k in PARTS), PARTS], ids=lambda ks: "+".join(k.__name__ for k in ks)[:40])
def test_a_batch_with_every_kind_of_part(kinds: list[type[Part]]) -> None:
    sent = batch_with(np.random.default_rng(len(kinds)), kinds)
    got = crossed(sent)
    assert_equal(got, sent)
    assert statics(got) == statics(sent)
    assert (got.last_alone, [p.level for p in got.parts]) == (True, [p.level for p in sent.parts])
    got.tokens[0] = 5  # a runner may write to it


def test_a_table_of_which_the_device_keeps_the_whole() -> None:
    sent = scratch([1, 1], [Table(kept=(5, 8))], 3, uniform=True)
    got = crossed(sent)
    (rows,), (want,) = got.block_tables, sent.block_tables
    assert (rows.blocks, rows.size, got.uniform) == (want.blocks, (5, 8), 1)
    assert (rows.places.dtype, rows.values.dtype, rows.slots.tolist()) == (want.places.dtype, want.values.dtype, [0, 0])


def test_a_result_with_everything_a_step_can_give() -> None:
    rows = Logprobs(np.arange(4, dtype=np.int32).reshape(2, 2), np.ones((2, 2), np.float32), np.ones(2, np.int32))
    sent = StepResult(
        np.ones((2, 1), np.int32), np.ones(2, np.int32), rows, score=replace(rows), invalid=np.array([True, False]),
        pooled=np.full((2, 3), 0.5, np.float32), extras={"routed": np.arange(3, dtype=np.int32)},
    )  # fmt: skip
    got = crossed(sent)
    for name in ("tokens", "counts", "invalid", "pooled"):
        np.testing.assert_array_equal(getattr(got, name), getattr(sent, name))
    assert got.each is None
    assert got.score.values.tolist() == got.logprobs.values.tolist() == [[1, 1], [1, 1]]
    assert got.extras["routed"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("plain", [{"kind": "Popen", "fields": []}, {"type": "int"}, {"kind": "StepBatch", "fields": [1]}, {}])
def test_nothing_else_is_read(plain: Any) -> None:
    with pytest.raises(FrameError):
        read_step(plain)
