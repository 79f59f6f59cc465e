"""Running streams keep their share of speed while prompts are computed, and short prompts do not wait for long ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from thalweg.backends.null import SimClock
from thalweg.bench.host import null_config, null_launch
from thalweg.engine.control import EngineCore
from thalweg.engine.control.pace import FIRST, LEAST, Pace
from thalweg.engine.control.scheduler import _shares
from thalweg.engine.messages import EngineRequest, TokenSampling


def request(handle: int, prompt: int, new: int) -> EngineRequest:
    tokens = np.random.default_rng(handle).integers(1, 200, prompt).astype(np.int32)
    return EngineRequest(handle=handle, tokens=tokens, prompt_len=prompt, sampling=TokenSampling(max_tokens=new))


def test_the_allowance_makes_a_mixed_step_the_slowdown_times_a_decoding_one():
    pace = Pace(2.0)
    assert pace.allowance(2048) == FIRST
    pace.observe(0, 4, 0.050)
    pace.observe(100, 4, 0.150)
    assert pace.allowance(2048) == pytest.approx(50, abs=1)
    assert pace.allowance(20) == 20


def test_a_prompt_always_gets_on():
    pace = Pace(1.5)
    pace.observe(0, 1, 0.001)
    pace.observe(100, 0, 100.0)
    assert pace.allowance(2048) == LEAST


def test_no_limit_is_no_limit():
    pace = Pace(0.0)
    pace.observe(0, 1, 1.0)
    pace.observe(100, 0, 100.0)
    assert pace.allowance(2048) == 2048


@given(rests=st.lists(st.integers(1, 5000), min_size=1, max_size=8), budget=st.integers(1, 4096), reserve=st.booleans())
def test_shares_are_fair_and_never_more_than_there_is(rests, budget, reserve):
    shares = _shares(dict(enumerate(rests)), budget, reserve)
    assert sum(shares.values()) <= budget
    for a, rest in enumerate(rests):
        assert shares[a] <= rest
        if budget > len(rests) + 1 and shares[a] < rest:  # who did not get everything got no less than anybody else
            assert all(shares[a] + 1 >= min(shares[b], budget // (len(rests) + reserve)) for b in shares)


def core_on_a_clock(**scheduler) -> tuple[EngineCore, SimClock]:
    """A step takes 10 ms and 0.2 ms per token of it."""
    clock = SimClock(1.0)
    config = null_config(seqs=8, max_len=17000, depth=1)
    config = replace(config, scheduler=replace(config.scheduler, max_tokens=2048, **scheduler))
    return EngineCore(config, null_launch(config, base=0.010, per_token=0.0002, clock=clock), clock=clock), clock


def gaps_while_a_long_prompt_comes(slowdown: float) -> tuple[float, float]:
    """Seconds between tokens of a running stream: alone, and the worst average over ten while 8,000 tokens come in."""
    core, clock = core_on_a_clock(max_prefill_slowdown=slowdown)
    core.add([request(1, 8, 600)])
    times: list[float] = []

    def run(steps: int) -> None:
        for _ in range(steps):
            out = core.step()
            if out is not None and 1 in out.handles.tolist():
                times.append(clock())

    run(40)
    solo = (times[-1] - times[-21]) / 20
    core.add([request(2, 8000, 4)])
    at = len(times)
    run(300)
    during = np.array(times[at - 1 :])
    return solo, float(((during[10:] - during[:-10]) / 10).max())


def test_a_running_stream_keeps_half_its_speed_while_a_long_prompt_comes_in():
    solo, worst = gaps_while_a_long_prompt_comes(2.0)
    assert worst <= 2.1 * solo
    solo, worst = gaps_while_a_long_prompt_comes(0.0)
    assert worst > 8 * solo, "the test can fail: without the limit the stream starves"


def test_a_short_prompt_does_not_wait_for_a_long_one():
    core, _ = core_on_a_clock(max_partial_prefills=4)
    core.add([request(1, 16000, 1), request(2, 64, 1)])
    order = []
    while core.has_work:
        out = core.step()
        order += [f.handle for f in out.finished] if out is not None else []
        core.check()
    assert order == [2, 1]
