"""The token of an answer after which drafts begin: where they cost the least over recent answers."""

from __future__ import annotations

import pytest

from thalweg.engine.control.speculation.gain import PLAIN, TRIAL, Gain
from thalweg.engine.control.speculation.starts import AFRESH, EVERY, FIRST, KEPT, Starts, StepTimes

FAST = StepTimes(plain=1.0, proposing=1.0, verifying=3.0, tokens=6.0)
SLOWER = StepTimes(plain=1.0, proposing=1.0, verifying=4.0, tokens=6.0)


def starts(lengths: list[int], times: StepTimes = FAST) -> Starts:
    made = Starts()
    for tokens in lengths:
        made.finish(tokens)
    made.choose(times)
    return made


@pytest.mark.parametrize(
    ("lengths", "times", "first"),
    [
        ([40], FAST, 1), ([2, 40], FAST, 3), ([2] * 7 + [40], FAST, 3), ([5] * 3 + [30], SLOWER, 6), ([2, 3] * 8, FAST, 4),
        ([5], SLOWER, 6),
    ],
)  # fmt: skip
def test_drafts_begin_behind_the_short_answers_if_these_are_many(lengths: list[int], times: StepTimes, first: int) -> None:
    assert starts(lengths * 3, times).first == first


def test_where_drafts_do_not_pay_none_are_made_but_for_a_measurement_now_and_then() -> None:
    slow = StepTimes(plain=1.0, proposing=1.0, verifying=3.0, tokens=3.0)
    made = starts([10, 40], slow)
    assert made.first == 41
    seen = []
    for _ in range(3 * AFRESH):
        made.choose(slow)
        seen.append(made.first)
    assert seen.count(FIRST) == 3
    assert set(seen) == {41, FIRST}


def test_old_answers_are_forgotten_and_choices_are_rare() -> None:
    made = starts([2] * KEPT)
    assert made.first == 3
    assert sum(made.finish(40) for _ in range(EVERY)) == 1
    for _ in range(KEPT):
        made.finish(40)
    made.choose(FAST)
    assert made.first == 1


def test_times_are_those_of_the_best_number_of_drafts() -> None:
    gain = Gain(3)
    for _ in range(PLAIN):
        gain.observe(1, None, 1.0)
    assert gain.times(1) is None
    for _ in range(TRIAL):
        gain.observe(1, [4], 2.0, 3)
    assert gain.times(1) == StepTimes(1.0, 0.5, 2.0, 4.0)
    for seconds in (20.0, 20.0, *[1.25] * (2 * TRIAL - 2)):  # the first ones are recorded
        gain.observe_opening(1, seconds, 3)
    assert gain.times(1) == StepTimes(1.0, 0.25, 2.0, 4.0)
