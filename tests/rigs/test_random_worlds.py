"""Random workloads, configurations and faults on the hash model: no wrong token, no lost or doubled one, nothing leaked."""

import heapq
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from oracle import Oracle, expected
from simulator import Run, simulate
from world import World, make_config, random_sampling

from thalweg.engine.messages import EngineRequest


@pytest.mark.parametrize("seeds", [14, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_random_runs_with_faults_are_right(seeds):
    total = simulate(400, seeds)
    assert total.preemptions > seeds / 3
    assert total.cached > seeds * 8
    assert total.crashes > seeds / 3
    assert total.aborts > seeds / 3
    assert total.sick > seeds / 3
    assert total.accepted > seeds


@pytest.mark.slow
@pytest.mark.parametrize(("start", "count"), [(100_000, 50), pytest.param(100_200, 2_000, marks=pytest.mark.nightly)])
def test_hundreds_of_random_runs_with_faults_are_right(start, count):
    assert simulate(start, count).seeds == count


def test_a_seed_is_one_run():
    assert [Run(seed).go() for seed in (3, 11)] == [Run(seed).go() for seed in (3, 11)]


@pytest.mark.slow
def test_the_simulator_prints_one_line():
    script = Path(__file__).with_name("simulator.py")
    done = subprocess.run([sys.executable, script, "--seeds", "2", "--start", "5"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ok: seeds 2, ")
    assert done.stdout.count("\n") == 1


def aborted_load(requests: int, blocks: int = 90) -> World:
    """Many requests, 30 % of them aborted at a random moment, in a cache too small for those that run."""
    rng = random.Random(requests)
    config = make_config(vocab=101, max_len=72, block_tokens=4, blocks=blocks, max_seqs=32, max_tokens=128, depth=2)
    w = World(config, salt=1, share_from=8)
    w.check_batch = lambda batch: None  # checked by the simulator; here the pool is, at every step
    stems = [[rng.randrange(101) for _ in range(24)] for _ in range(6)]
    doomed: list[tuple[int, int]] = []  # (when, handle), soonest first
    for h in range(requests):
        tokens = rng.choice(stems)[: rng.randrange(25)] + [rng.randrange(101) for _ in range(rng.randrange(1, 8))]
        sampling = random_sampling(rng, 101, 40)
        w.submit(EngineRequest(handle=h, tokens=np.array(tokens, np.int32), prompt_len=len(tokens), sampling=sampling))
        if rng.random() < 0.3:
            heapq.heappush(doomed, (w.batches + rng.randrange(12), h))
        while len(w.core.scheduler.waiting) > 24:
            w.step()
            while doomed and doomed[0][0] <= w.batches:
                w.abort(heapq.heappop(doomed)[1])
    w.drain()
    return w


@pytest.mark.slow
def test_nothing_is_wrong_or_leaked_when_requests_are_aborted_at_random():
    w = aborted_load(600, blocks=40)  # of 90, one preemption, which depends on when a step is found to have ended
    ends = [t.finished for t in w.tracked.values()]
    assert ends.count("abort") > 60
    assert w.core.stats().preemptions > 0
    assert w.core.stats().prefix_hits > 1000


@pytest.mark.slow
def test_nothing_is_wrong_or_leaked_after_ten_thousand_requests_a_third_of_them_aborted():
    w = aborted_load(10_000)
    assert sum(t.finished == "abort" for t in w.tracked.values()) > 1000


def test_the_two_statements_of_the_oracle_agree():
    request = EngineRequest(
        handle=0, tokens=np.array([5, 6, 7], np.int32), prompt_len=3, sampling=random_sampling(random.Random(4), 3, 30)
    )
    sampling = type(request.sampling)(max_tokens=20)
    request = EngineRequest(handle=0, tokens=request.tokens, prompt_len=3, sampling=sampling)
    assert Oracle(9, 256).generate(request, 1000)[0] == expected(9, [5, 6, 7], 20)
