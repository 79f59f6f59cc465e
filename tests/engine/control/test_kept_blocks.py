"""The order of kept blocks: by the pauses after which such blocks were reused, and by age where nothing is known."""

from __future__ import annotations

import argparse
import random

import numpy as np
import pytest
from scipy.stats import CensoredData, ecdf

from benchmarks.agent_cache import TTL, PoolCache, hit_rate, make_trace
from thalweg.engine.control.cache.kept import AGES, CLASSES, ESTIMATE_EVERY, KeptBlocks, ReuseEstimate, find_median


def reuse_after(kept: KeptBlocks, seconds: float, now: float, times: int = 2 * ESTIMATE_EVERY) -> float:
    """Blocks that are reused so long after their release. Returns the time after that."""
    for _ in range(times):
        kept.add(1, now + 1000, now)
        now += seconds
        kept.reuse(1, now)
    return now


def test_without_counts_the_block_released_first_goes_first() -> None:
    kept = KeptBlocks(8)
    for block, now in ((3, 0.0), (1, 2.0), (2, 2.0), (4, 9.0)):
        kept.add(block, 1000.0, now)
    assert [kept.pop_last(10.0) for _ in range(4)] == [3, 1, 2, 4]
    assert len(kept) == 0


def test_a_block_that_is_about_to_be_reused_outlives_one_that_was_just_released() -> None:
    kept = KeptBlocks(8)
    now = reuse_after(kept, 10.0, 0.0)
    kept.add(5, now + 1000, now - 60.0)  # away for longer than any before
    kept.add(6, now + 1000, now - 9.0)
    kept.add(7, now + 1000, now)
    assert [kept.pop_last(now) for _ in range(3)] == [5, 7, 6]


def test_a_block_whose_time_is_over_goes_before_all() -> None:
    kept = KeptBlocks(8)
    kept.add(1, 50.0, 0.0)
    kept.add(2, 20.0, 5.0)
    kept.add(3, 30.0, 6.0)
    assert kept.pop_expired(19.9) is None
    kept.extend(2, 60.0)
    assert [kept.pop_expired(50.0) for _ in range(3)] == [3, 1, None]
    assert list(kept) == [2]
    kept.clear()
    assert (len(kept), kept.pop_expired(99.0)) == (0, None)


def test_hazards_are_those_of_kaplan_and_meier() -> None:
    """scipy's estimator, with evictions as censored observations. An observation of a class is before the end of the class, and
    an eviction in it leaves its count."""
    rng = random.Random(3)
    estimate, reused, evicted = ReuseEstimate(1 << 20), [], []
    for _ in range(3000):
        age = min(int(rng.expovariate(0.15)), CLASSES - 1)
        gone = rng.randrange(CLASSES)
        estimate.count(0, min(age, gone), reused=age < gone)
        (reused if age < gone else evicted).append(min(age, gone))
    # In scipy an observation that is censored at a time is at risk at that time, so ours is censored just before.
    survival = ecdf(CensoredData(uncensored=np.array(reused), right=np.array(evicted) - 0.5)).sf
    ours = np.cumprod([1 - h for h in estimate.find_hazards(prior=0.0)])
    for at in range(max(reused)):
        assert ours[at] == pytest.approx(float(survival.evaluate(at)), abs=1e-9)


def test_the_median_of_the_rest_of_a_pause() -> None:
    hazards = [0.0] * CLASSES
    assert find_median(3, hazards) < find_median(4, hazards), "never reused: the older goes first"
    hazards[6], hazards[7] = 0.25, 1.0  # reused between 5.7 and 11.3 seconds
    assert AGES[5] == pytest.approx(5.66, abs=0.01)
    half = AGES[6] + (AGES[7] - AGES[6]) / 3  # a quarter before 8 seconds, and a third of the rest makes half
    assert find_median(0, hazards) == pytest.approx(half)
    assert find_median(5, hazards) == pytest.approx(half - AGES[4])
    assert find_median(7, hazards) == pytest.approx((AGES[7] - AGES[6]) / 2)


@pytest.mark.parametrize("seed", [0, 1])
def test_agents_find_more_than_with_the_least_recently_used_order(seed: int) -> None:
    """With the kept block that was released first evicted first, retention gained 10 and 11 points."""
    trace = make_trace(argparse.Namespace(conversations=12, turns=20, one_shot=0.5, seed=seed, pauses="pareto"))
    blocks = sum(max(t.blocks for t in trace if t.conversation == c) for c in range(12)) // 3
    least_recent, kept = (hit_rate(PoolCache(blocks, retain), trace) for retain in (False, True))
    assert kept > least_recent + 0.13
    assert TTL == 300.0
