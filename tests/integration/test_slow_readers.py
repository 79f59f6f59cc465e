"""A streaming reader that lags stops its own request from being computed, and loses nothing by it."""

from __future__ import annotations

import asyncio

import pytest

from thalweg import AsyncLLM, EngineArgs, SamplingParams
from thalweg.async_llm import MOST_WAITING
from thalweg.params import RequestOutputKind

pytestmark = pytest.mark.slow  # each starts processes
ARGS = EngineArgs(device="null", max_num_seqs=16, additional_config={"base": 0.0005})


@pytest.fixture
async def engine():
    made = await AsyncLLM.start(ARGS)
    yield made
    await made.shutdown()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def texts(engine, request_id, pauses, **fields):
    """The choices' (text, ids, logprobs) of a stream whose reader pauses after each output for as long as `pauses` says."""
    parts = {}
    params = SamplingParams(max_tokens=900, seed=3, ignore_eos=True, output_kind=RequestOutputKind.DELTA, **fields)
    async for out in engine.generate([5, 6, 7], params, request_id):
        for c in out.outputs:
            text, ids, scores = parts.setdefault(c.index, ("", [], []))
            parts[c.index] = (text + c.text, ids + list(c.token_ids), scores + list(c.logprobs or ()))
        await asyncio.sleep(pauses.pop() if pauses else 0)
    return parts


@pytest.mark.parametrize(
    "fields",
    [{"n": 3, "temperature": 1.0}, {}, {"logprobs": 3}, {"stop": ["never there"]}],
)
async def test_what_a_slow_reader_gets_is_what_a_fast_one_gets(engine, fields):
    fast = await texts(engine, "fast", [], **fields)
    slow = await texts(engine, "slow", [0.7, 0.7, 0.01, 0.7], **fields)
    assert slow == fast
    assert all(len(ids) == 900 for _, ids, _ in slow.values())
    stats = engine.stats()
    assert stats.generated_tokens < 2 * 900 * len(fast) + 1500, "little is computed twice"


async def test_a_reader_that_stops_stops_its_request_and_nobody_else(engine):
    params = SamplingParams(max_tokens=1800, seed=3, ignore_eos=True, logprobs=3, output_kind=RequestOutputKind.DELTA)
    stream = engine.generate([5, 6, 7], params, "stopped")
    await anext(stream)
    await until(lambda: engine.stats().generated_tokens > MOST_WAITING // 4 and not engine.stats().running)
    made = engine.stats().generated_tokens
    assert made < MOST_WAITING
    other = await texts(engine, "other", [])
    assert len(other[0][1]) == 900
    await until(lambda: engine.stats().running == 0)  # its blocks are free
    assert engine.stats().generated_tokens <= made + 900 + 10
    await engine.abort("stopped")
    rest = [out async for out in stream]
    assert rest[-1].outputs[0].finish_reason == "abort"


async def test_a_restart_while_a_reader_lags_loses_nothing(engine):
    import os
    import signal

    fast = await texts(engine, "fast", [])
    slow = asyncio.create_task(texts(engine, "slow", [0.3, 2.0]))
    await asyncio.sleep(1.0)
    os.kill(engine.engine_pid, signal.SIGKILL)
    assert await slow == fast
    await until(lambda: engine.restarts == 1)
