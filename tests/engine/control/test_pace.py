"""Prompts beside running streams: streams keep their share of speed, prompts get on nearly as fast as the rest allows."""

from __future__ import annotations

from collections import deque

import pytest

from thalweg.engine.control.pace import CHUNK_SECONDS, FIRST, Pace


def see(pace: Pace, prompt_tokens: int, decodes: int, seconds: float) -> None:
    """A step from its launch to its end."""
    pace.record_launch(prompt_tokens, decodes)
    pace.observe(prompt_tokens, decodes, seconds)


def run(
    pace: Pace, *, decode: float, fixed: float, per_token: float, depth: int = 1, seconds: float = 60.0
) -> tuple[float, float]:
    """Streams that always decode beside prompts without end: (share of their solo speed kept, prompt tokens per second).
    A step takes `decode`, and with n prompt tokens `fixed + n per_token` on top."""
    clock, steps, prompt = 0.0, 0, 0
    in_flight: deque[int] = deque()
    while clock < seconds:
        while len(in_flight) < depth:
            take = pace.allowance(2048)
            in_flight.append(take)
            pace.record_launch(take, 1)
        take = in_flight.popleft()
        took = decode + (fixed + take * per_token if take else 0.0)
        pace.observe(take, 1, took)
        clock, steps, prompt = clock + took, steps + 1, prompt + take
    return steps * decode / clock, prompt / clock


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("decode", [0.001, 0.005, 0.03, 0.2])
@pytest.mark.parametrize("fixed", [0.0, 0.002, 0.01])
@pytest.mark.parametrize("slowdown", [1.5, 2.0, 4.0])
@pytest.mark.sampled(18)
def test_streams_keep_their_share_and_prompts_get_most_of_the_rest(
    slowdown: float, fixed: float, decode: float, depth: int
) -> None:
    pace = Pace(slowdown)
    see(pace, 0, 1, decode)
    kept, rate = run(pace, decode=decode, fixed=fixed, per_token=4e-5, depth=depth)
    assert kept >= 1 / slowdown - 0.03
    chunk = max((slowdown - 1) * decode, CHUNK_SECONDS)
    best = (1 - 1 / slowdown) * max(16.0, min(2048.0, (chunk - fixed) / 4e-5)) / chunk
    assert rate >= 0.6 * best  # whole steps are coarse where one decoding step nearly pays for a chunk


def test_nobody_is_held_up_longer_than_a_chunk() -> None:
    pace = Pace(2.0)
    see(pace, 0, 1, 0.002)
    see(pace, 1000, 0, 0.04)
    assert pace.allowance(2048) * 4e-5 == pytest.approx(CHUNK_SECONDS, rel=0.05)
    pace.record_launch(600, 1)
    assert pace.allowance(2048) == 0  # until the time that step takes is known and made up for
    pace.observe(600, 1, 0.026)
    waited = 0
    while not pace.allowance(2048):
        see(pace, 0, 1, 0.002)
        waited += 1
    assert 9 <= waited <= 14


def test_short_prompts_do_not_wait_for_what_a_long_one_has_run_up() -> None:
    pace = Pace(2.0)
    see(pace, 0, 1, 0.002)
    see(pace, 1000, 0, 0.04)
    see(pace, 600, 1, 0.026)
    assert pace.allowance(2048) == 0
    assert pace.newcomers(2048) == pytest.approx(50, abs=8)  # what takes as long as a decoding step
    see(pace, 5000, 1, 0.3)
    assert pace.newcomers(2048) == 0  # streams have waited enough


def test_a_step_without_streams_leaves_no_debt_to_those_that_come_later() -> None:
    pace = Pace(2.0)
    see(pace, 0, 1, 0.002)
    see(pace, 1000, 0, 0.04)
    pace.record_launch(5000, 1, False)
    assert pace.allowance(2048)
    pace.observe(5000, 1, 0.3, False)
    assert pace.allowance(2048)


def test_a_long_step_is_known_by_what_its_tokens_took() -> None:
    pace = Pace(0)
    assert not pace.is_long(2048)
    see(pace, 1000, 0, 0.04)
    assert pace.is_long(512)
    assert not pace.is_long(100)


def test_before_anything_is_known_a_little_is_allowed_and_without_a_limit_everything() -> None:
    assert Pace(2.0).allowance(2048) == FIRST
    assert Pace(2.0).allowance(8) == 8
    assert Pace(0).allowance(2048) == 2048
