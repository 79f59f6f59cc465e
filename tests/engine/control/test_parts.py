"""Parts of a step in the control plane: who is asked for one, when, and for how long it is used again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from world import World, make_config

from thalweg.engine.control.parts import builder
from thalweg.engine.control.parts.builder import FOREVER, Builder, PerSequence, StepRows
from thalweg.engine.control.slots import LOOKBACK, UNDRAFTED
from thalweg.engine.messages import EngineRequest, TokenSampling
from thalweg.features import FEATURES, Feature
from thalweg.hal.fields import Array, Part, dim
from thalweg.hal.parts.history import History

I32 = np.int32


@dataclass(slots=True)
class Marks(Part):
    """What sequences asked for, and when it was made."""

    mark: Array = dim("S", I32, fill=-1)
    made: Array = dim("N", I32)


class MarksBuilder(Builder):
    part = Marks
    lasts = FOREVER
    calls: list[StepRows]

    def __init__(self, setup: Any) -> None:
        self.calls = MarksBuilder.calls = []

    def is_enabled(self, p: TokenSampling) -> bool:
        return "mark" in p.extra

    def build(self, work: StepRows) -> tuple[Marks | None, int]:
        self.calls.append(work)
        marks = Marks.blank({"S": work.slots.size, "N": 1})
        for row, request in work.rows(self.flag):
            marks.mark[row] = request.sampling.extra["mark"]
        marks.made[:] = len(self.calls)
        return (marks if MarksBuilder.lasts else None), max(1, MarksBuilder.lasts)


@dataclass(slots=True)
class Kept(Part):
    logits = True
    mark: Array = dim("S", I32, fill=-1)


class KeptBuilder(PerSequence):
    part = Kept
    looks_back = True

    def is_enabled(self, p: TokenSampling) -> bool:
        return "kept" in p.extra

    def row(self, request: Any) -> dict[str, int]:
        return {"mark": request.sampling.extra["kept"]}

    def level(self, part: Kept) -> int:
        return int(part.mark.max())


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two features more than there are."""
    more = (Feature("", f"{__name__}:MarksBuilder"), Feature("", f"{__name__}:KeptBuilder"))
    monkeypatch.setattr(builder, "all_features", lambda: (*FEATURES, *more))
    monkeypatch.setattr(MarksBuilder, "lasts", FOREVER)


def world(**config: Any) -> World:
    w = World(make_config(**{"depth": 1, **config}))
    w.batch_log = []
    return w


def ask(w: World, handle: int, prompt: list[int], max_tokens: int, **extra: int) -> None:
    sampling = TokenSampling(max_tokens=max_tokens, extra=extra)
    w.submit(EngineRequest(handle=handle, tokens=np.array(prompt, I32), prompt_len=len(prompt), sampling=sampling))


@pytest.mark.parametrize(("lasts", "made"), [(1, [1, 2, 3, 4, 5, 6]), (2, [1, 2, 2, 3, 3, 4]), (FOREVER, [1, 2, 2, 2, 2, 2])])
def test_a_part_is_used_again_for_as_many_steps_as_its_builder_says(
    monkeypatch: pytest.MonkeyPatch, lasts: int, made: list[int]
) -> None:
    """The first step computes the prompts; then the same two sequences decode."""
    monkeypatch.setattr(MarksBuilder, "lasts", lasts)
    w = world()
    ask(w, 0, [1, 2, 3], 6, mark=7)
    ask(w, 1, [4, 5], 6)
    w.drain()
    parts = [b.get(Marks) for b in w.batch_log]
    assert [int(p.made[0]) for p in parts] == made
    for batch, part in zip(w.batch_log, parts, strict=True):
        assert sorted(part.mark.tolist()) == [-1, 7]
        assert batch.features.level(Marks) == 0


def test_a_part_that_is_none_for_now_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MarksBuilder, "lasts", 0)
    w = world()
    ask(w, 0, [1, 2, 3], 5, mark=7)
    w.drain()
    assert len(MarksBuilder.calls) == len(w.batch_log) == 5
    assert not any(b.parts or b.features.parts for b in w.batch_log)


def test_nobody_is_asked_where_no_sequence_asks() -> None:
    w = world()
    ask(w, 0, [1, 2, 3], 5)
    w.drain()
    assert MarksBuilder.calls == []


def test_rows_kept_by_slot_are_those_of_who_asks_now() -> None:
    """A slot is used again by a sequence that asks for nothing."""
    w = world(max_seqs=2)
    ask(w, 0, [1, 2, 3], 3, kept=5)
    ask(w, 1, [4, 5], 9, kept=8)
    ask(w, 2, [6], 5)
    ask(w, 3, [7], 3, kept=2)
    w.drain()
    seen = set()
    for batch in w.batch_log:
        part = batch.get(Kept)
        if part is not None:
            seen.add(tuple(sorted(part.mark.tolist())))
            assert batch.features.level(Kept) == part.mark.max()
    assert {(5, 8), (-1, 8), (2,)} <= seen


def test_what_a_builder_says_of_its_sequences_is_in_their_flags() -> None:
    w = world(block_tokens=4, max_tokens=8)
    ask(w, 0, list(range(12)), 1)
    w.drain()
    ask(w, 1, list(range(12)), 3, kept=1)
    ask(w, 2, [1], 3, mark=1)
    w.step()
    flags = {int(w.core.slots.handle[s]): int(w.core.slots.flags[s]) for s in w.batch_log[-1].slots}
    assert flags[1] & LOOKBACK
    assert flags[1] & UNDRAFTED
    assert not flags[2] & (LOOKBACK | UNDRAFTED)
    assert w.batch_log[-1].get(History).token.tolist() == list(range(8))
    w.drain()
