"""Whether drafts pay is measured: on a device where they do there are some, on one where they do not there are few."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from thalweg.engine.control.speculation.gain import LONGEST_REST, TRIAL, Gain
from thalweg.engine.control.speculation.speculator import MOST_MISSED, Speculator


def run(steps: int, rows: int, plain: float, drafted: float, counts: list[int]) -> tuple[int, float, float]:
    """Steps of `rows` streams; (how many had drafts, seconds, tokens per stream by the geometric mean)."""
    gain, clock, got, tried = Gain(), 0.0, 0.0, 0
    each = float(np.exp(np.log(counts).mean()))
    for _ in range(steps):
        if gain.allows(rows):
            gain.observe(rows, np.array(counts), drafted)
            clock, got, tried = clock + drafted, got + each, tried + 1
        else:
            gain.observe(rows, None, plain)
            clock, got = clock + plain, got + 1
    return tried, clock, got


def test_where_drafts_pay_nearly_every_step_has_them():
    tried, clock, got = run(1000, 4, plain=1.0, drafted=1.5, counts=[3, 3, 2, 4])
    assert tried > 950
    assert got / clock > 1.9


def test_where_they_do_not_they_are_tried_ever_more_rarely():
    tried, clock, got = run(4000, 4, plain=1.0, drafted=3.0, counts=[2, 2, 2, 2])
    assert 2 * TRIAL <= tried <= 10 * TRIAL
    assert got / clock > 0.97
    assert run(20_000, 4, 1.0, 3.0, [2, 2, 2, 2])[0] < 10 * TRIAL + 20_000 / LONGEST_REST * TRIAL


@pytest.mark.parametrize(("counts", "often"), [([5, 5, 5, 5], True), ([5, 5, 1, 1], True), ([5, 1, 1, 1], False)])
def test_one_stream_that_repeats_itself_does_not_slow_all_others(counts, often):
    tried, _, _ = run(1000, 4, plain=1.0, drafted=1.9, counts=counts)
    assert (tried > 900) is often


def test_what_a_device_does_is_found_out_again_when_it_changes():
    gain, tried = Gain(), []
    for phase, drafted in enumerate((3.0, 1.1, 3.0)):
        tried.append(0)
        for _ in range(3000):
            if gain.allows(2):
                gain.observe(2, np.array([2, 2]), drafted)
                tried[phase] += 1
            else:
                gain.observe(2, None, 1.0)
    assert tried[0] < 100
    assert tried[1] > 1500
    assert tried[2] < 200


def test_the_first_steps_of_a_width_may_take_long():
    """They are recorded or compiled. That is no reason to give drafts up."""
    gain, tried = Gain(), 0
    for _ in range(1000):
        if gain.allows(1):
            gain.observe(1, np.array([3]), 20.0 if tried in (0, 2) else 1.5)
            tried += 1
        else:
            gain.observe(1, None, 1.0)
    assert tried > 950


def test_numbers_of_streams_are_judged_apart():
    gain = Gain()
    for _ in range(200):
        for rows, drafted in ((1, 1.1), (16, 9.0)):
            if gain.allows(rows):
                gain.observe(rows, np.full(rows, 2), drafted)
            else:
                gain.observe(rows, None, 1.0)
    assert gain.allows(1)
    assert not gain.allows(16)


def widths(seconds: dict[int, float], most: int, steps: int = 2000, **more) -> list[int]:
    """Drafts of each step, four of five of which are right wherever the ones before them are. seconds: of a step, by drafts."""
    gain, rng, used = Gain(most, **more), np.random.default_rng(0), []
    for _ in range(steps):
        k = gain.choose(1) if gain.allows(1) else 0
        right = int(np.logical_and.accumulate(rng.random(k) < 0.8).sum())
        gain.observe(1, np.array([1 + right]) if k else None, seconds[k], k)
        used.append(k)
    return used


@pytest.mark.parametrize(("seconds", "best"), [({0: 1, 1: 1.1, 3: 2.4, 7: 4.9}, 1), ({0: 1, 1: 1.5, 3: 1.6, 7: 4.9}, 3),
                                               ({0: 1, 1: 1.5, 3: 1.9, 7: 2}, 7)])  # fmt: skip
def test_the_number_of_drafts_is_the_one_with_the_least_time_per_token(seconds, best):
    assert widths(seconds, most=7).count(best) > 1600


def test_few_drafts_are_found_where_many_do_not_pay_and_none_where_none_do():
    assert widths({0: 1, 1: 1.1, 3: 9, 7: 9}, most=7).count(1) > 1600
    assert widths({0: 1, 1: 2, 3: 4, 7: 9}, most=7).count(0) > 1800


def test_a_bound_holds_whatever_is_measured():
    used = widths({0: 1, 1: 1.5, 2: 1.6, 3: 1.7, 7: 1.8}, most=7, bound=lambda streams: 2)
    assert max(used) == 2
    assert used.count(2) > 1600
    assert set(widths({0: 1}, most=7, bound=lambda streams: 0)) == {0}


def test_a_sequence_that_the_proposer_did_not_follow_has_no_drafts_until_another_enters():
    """Its drafts would be wrong, and would count against those of others."""
    drafter: Any = SimpleNamespace(most=3, bound=lambda streams: 3, remembers=True, proposer="module:Class")
    slots: Any = SimpleNamespace(count=4, serial=np.array([0, 11, 12, 0, 0]), flags=np.zeros(5, np.int32))
    slots.limit, slots.length = np.full(5, 99, np.int32), np.full(5, 9, np.int32)
    made, one, both = Speculator(slots, None, (), drafter, False, None), np.array([1], np.int32), np.array([1, 2], np.int32)
    for _ in range(MOST_MISSED):
        made.miss(one, ())
    assert made.choose(1, one, False) == 3, "a few tokens do not matter"
    made.miss(one, ())
    assert made.choose(1, one, False) == 0
    assert made.choose(1, one, True) == 3
    assert made.choose(2, both, False) == 3
    assert made.eligible(both).tolist() == [False, True]
    slots.serial[1] = 13
    assert made.choose(1, one, False) == 3, "another sequence has the slot"
    made.miss(np.empty(0, np.int32), [SimpleNamespace(slot=2, take=40)])
    assert made.eligible(both).tolist() == [True, False]


def test_without_times_drafts_are_allowed():
    gain = Gain()
    for _ in range(100):
        gain.observe(3, np.array([1, 1, 1]), 0.0)
    assert gain.allows(3)
