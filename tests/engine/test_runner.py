"""The one model runner: which executable a step gets, and what it has been given by then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from thalweg.engine.worker.rehearsal import Table, decodes, prompts
from thalweg.engine.worker.runner import Runner
from thalweg.hal.parts.adapters import Adapters
from thalweg.hal.parts.bad_words import BadWords
from thalweg.hal.parts.bias import Bias
from thalweg.hal.parts.history import History
from thalweg.hal.parts.mask import Mask
from thalweg.hal.parts.penalties import Penalties
from thalweg.hal.parts.scores import Scores
from thalweg.hal.parts.timestamps import Timestamps
from thalweg.hal.platform import Limits
from thalweg.hal.step import Features, SamplingArrays, StepBatch, StepShape


def batch_of(seqs: int, tokens: int = 1, features: Features | None = None) -> StepBatch:
    n, i32 = seqs * tokens, np.int32
    return StepBatch(
        tokens=np.arange(n, dtype=i32), token_seq=np.repeat(np.arange(seqs, dtype=i32), tokens),
        positions=np.tile(np.arange(tokens, dtype=i32), seqs), slots=np.arange(1, seqs + 1, dtype=i32),
        context=np.zeros(seqs, i32), query=np.full(seqs, tokens, i32),
        last_row=np.arange(tokens - 1, n, tokens, dtype=i32), emit=np.ones(seqs, bool),
        block_tables=(np.ones((seqs, 2), i32),), sampling=SamplingArrays.greedy(seqs), uniform=tokens,
        features=features or Features(),
    )  # fmt: skip


@dataclass
class Machine:
    """Compiles executables that remember what they ran."""

    made: list[tuple[StepShape | None, Features | None]] = field(default_factory=list)
    ran: list[tuple[StepShape | None, Features | None, StepBatch]] = field(default_factory=list)

    def compile(self, shape: StepShape | None, features: Features | None) -> Any:
        self.made.append((shape, features))
        return lambda batch: self.ran.append((shape, features, batch))


class Planner:
    """Attention that plans what it sees."""

    def metadata(self, batch: StepBatch, group: int, spec: Any, shape: StepShape | None) -> Mapping[str, Any]:
        return {"tokens": batch.tokens.shape[0], "shape": shape}


BUCKETS = [StepShape(n, n, 2, True) for n in (8, 2, 4)]


def test_a_step_runs_in_the_smallest_bucket_that_holds_it() -> None:
    machine = Machine()
    runner = Runner(machine.compile, (), BUCKETS, unpadded=True)
    for n in (1, 2, 3, 4, 7, 8):
        runner.launch(batch_of(n))
    assert [s.seqs for s, _, _ in machine.ran if s] == [2, 2, 4, 4, 8, 8]
    assert all(b.tokens.shape[0] == s.tokens for s, _, b in machine.ran if s)


def test_what_no_bucket_holds_runs_as_it_is_or_is_an_error() -> None:
    machine = Machine()
    runner = Runner(machine.compile, (), BUCKETS, unpadded=True)
    for batch in (batch_of(9), batch_of(1, tokens=3)):
        runner.launch(batch)
    assert [(s, b.tokens.shape[0]) for s, _, b in machine.ran] == [(None, 9), (None, 3)]
    with pytest.raises(ValueError, match=r"no bucket holds 9 tokens of 9 sequences"):
        Runner(machine.compile, (), BUCKETS).launch(batch_of(9))


def test_without_buckets_one_executable_takes_everything() -> None:
    machine = Machine()
    runner = Runner(machine.compile, (), ())
    for batch in (batch_of(3), batch_of(2, tokens=5, features=Features(random=True))):
        runner.launch(batch)
    assert machine.made == [(None, None)]
    assert len(machine.ran) == 2


def test_an_executable_serves_only_features_it_was_compiled_for() -> None:
    machine = Machine()
    runner = Runner(machine.compile, (), BUCKETS)
    greedy, drawn, cut = Features(), Features(random=True), Features(random=True, truncate=True)
    for features in (greedy, cut, drawn, greedy):
        runner.launch(batch_of(2, features=features))
    assert [f for _, f in machine.made] == [greedy, cut]
    assert [f for _, f, _ in machine.ran] == [greedy, cut, cut, greedy]


def test_attention_plans_the_batch_as_the_device_will_see_it() -> None:
    machine = Machine()
    runner = Runner(machine.compile, ((Planner(), None),), BUCKETS, unpadded=True)  # type: ignore[arg-type]
    for n in (3, 9):
        runner.launch(batch_of(n))
    assert [b.metadata for _, _, b in machine.ran] == [({"tokens": 4, "shape": BUCKETS[2]},), ({"tokens": 9, "shape": None},)]


@pytest.mark.parametrize("able", [True, False])
def test_a_step_with_prompts_is_padded_where_its_attention_may_be_captured(able: bool) -> None:
    class Other(Planner):
        mixed = able

    machine, shape = Machine(), StepShape(16, 4, 2)
    runner = Runner(machine.compile, ((Other(), None),), [*BUCKETS, shape], unpadded=True)  # type: ignore[arg-type]
    for batch in (batch_of(2, tokens=5), batch_of(4, tokens=4), batch_of(4, tokens=3), batch_of(3)):
        runner.launch(batch)
    assert [s for s, _, _ in machine.ran] == [*([shape, shape] if able else [None, None]), None, BUCKETS[2]]
    assert all(b.uniform == 0 and b.tokens.shape[0] == 16 for s, _, b in machine.ran if s == shape)


def test_steps_with_prompts_are_rehearsed_without_the_buckets_that_would_hold_them() -> None:
    """Longer ones that no bucket holds launch what these do, and over short tables."""
    machine, shape = Machine(), StepShape(16, 4, 2)
    for unpadded, want in ((True, None), (False, shape)):
        runner = Runner(machine.compile, (), [*BUCKETS, shape], unpadded=unpadded)
        ((run, batch),) = [make() for make in runner.rehearsals([], [lambda: batch_of(2, tokens=5)])]
        run(batch)
        assert machine.ran[-1][0] == want


LIMITS = Limits(tokens=100, seqs=8, max_len=40, block_tokens=4)


def test_every_kind_of_step_is_rehearsed_in_scratch_and_padded_as_in_traffic() -> None:
    machine = Machine()
    runner = Runner(machine.compile, ((Planner(), None),), BUCKETS, unpadded=True)  # type: ignore[arg-type]
    steps = runner.rehearsals([BUCKETS[0], BUCKETS[1]], prompts(LIMITS, [Table()], 50, 20), decodes(LIMITS, [Table()], 50, 20))
    assert machine.ran == []  # batches are made when they are run
    for make in steps:
        run, batch = make()
        batch.check()
        run(batch)
    shapes = [s for s, _, _ in machine.ran]
    first = machine.ran[0][2]
    assert first.tokens.shape[0] == LIMITS.tokens  # the largest step
    assert first.query.tolist() == [40, 40, 15, 1, 1, 1, 1, 1]
    ours = [BUCKETS[0], BUCKETS[1]]
    at = next(i for i, s in enumerate(shapes) if s)
    assert shapes[at : at + 2] == ours
    assert set(shapes[:at]) == {None}
    assert {b.features.level(Scores) for s, _, b in machine.ran if s is None} == {-1, 20}
    assert {b.features.logprobs for s, _, b in machine.ran if s} == {-1, 0, 20}
    for _, _, batch in machine.ran:
        assert not batch.slots.any()
        assert not batch.emit.any()
        assert not any(t.any() for t in batch.block_tables)
        assert len(batch.metadata) == 1
        assert batch.features.parts == batch.infer_features().parts
    kinds = {kind for _, _, b in machine.ran for kind, _ in b.features.parts}
    assert kinds == {BadWords, Bias, History, Mask, Penalties, Scores, Timestamps}


def test_steps_with_adapters_are_rehearsed_where_the_engine_has_slots_for_them() -> None:
    for adapters in (False, True):
        steps = [make() for rehearse in (prompts, decodes) for make in rehearse(LIMITS, [Table()], 50, 20, adapters)]
        assert any(b.features.level(Adapters) >= 0 for b in steps) is adapters


def test_limits_that_hold_little_are_kept_to() -> None:
    for tokens, seqs, max_len in ((1, 1, 1), (4, 1, 100), (7, 2, 3)):
        limits = Limits(tokens, seqs, max_len, 4)
        for make in (*prompts(limits, [Table()], 5, 0), *decodes(limits, [Table()], 5, 0)):
            batch = make()
            batch.check()
            assert batch.tokens.shape[0] <= tokens
            assert batch.slots.shape[0] <= seqs
            assert max(batch.query) <= max_len
