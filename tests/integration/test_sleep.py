"""A real engine that is paused and put to sleep: its memory is given back, and every text is the one it would have been."""

from __future__ import annotations

import asyncio
import os

import pytest
import pytest_asyncio

from thalweg import LLM, AsyncLLM, EngineArgs, SamplingParams
from thalweg.errors import ConfigError, UnavailableError
from thalweg.params import RequestOutputKind

pytestmark = pytest.mark.slow
in_one_loop = pytest.mark.asyncio(loop_scope="module")
ARGS = EngineArgs(device="cpu", max_model_len=512, max_num_seqs=8, threads=1, use_tqdm_on_load=False, enable_sleep_mode=True)
LONG = SamplingParams(temperature=1.0, seed=7, max_tokens=200, ignore_eos=True, output_kind=RequestOutputKind.DELTA)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine():
    made = await AsyncLLM.start(ARGS)
    yield made
    await made.shutdown()


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def text(engine, name: str, prompt: str = "The river") -> str:
    return "".join([out.outputs[0].text async for out in engine.generate(prompt, LONG, name)])


async def begun(engine, name: str):
    """A request that has had its first output: what it has said, and the task that reads the rest."""
    stream = engine.generate("The river", LONG, name)
    said = [(await anext(stream)).outputs[0].text]

    async def rest() -> tuple[str, str | None]:
        reason = None
        async for out in stream:
            said.append(out.outputs[0].text)
            reason = out.outputs[0].finish_reason
        return "".join(said), reason

    return said, asyncio.create_task(rest())


@in_one_loop
async def test_asleep_it_is_gone_and_awake_it_says_the_same(engine) -> None:
    before, pid, restarts = await text(engine, "before"), engine.engine_pid, engine.restarts
    _, kept = await begun(engine, "kept")
    await engine.sleep(level=2, mode="keep")
    assert await engine.is_sleeping()
    assert engine.sleep_level == 2
    assert not exists(pid)
    assert (engine.engine_pid, engine.ready, engine.state) == (None, False, "sleeping")
    await engine.check_health()
    assert await engine.reset_prefix_cache()
    new = asyncio.create_task(text(engine, "new"))
    gone = asyncio.create_task(text(engine, "gone"))
    await asyncio.sleep(0.1)
    assert not new.done()
    await engine.abort("gone")
    with pytest.raises(UnavailableError):
        await gone
    await engine.wake_up()
    assert engine.ready
    assert await kept == (before, "length")
    assert await new == before
    assert engine.restarts == restarts
    _, ended = await begun(engine, "ended")
    await engine.sleep()
    assert (await ended)[1] == "abort"
    await asyncio.gather(engine.wake_up(), engine.wake_up())
    assert await text(engine, "after") == before


@in_one_loop
async def test_paused_it_stands_still_also_when_it_is_replaced(engine) -> None:
    before = await text(engine, "before")
    said, kept = await begun(engine, "kept")
    await engine.pause_generation(mode="keep", clear_cache=False)
    await asyncio.sleep(0.2)
    made, restarts = len(said), engine.restarts
    os.kill(engine.engine_pid, 9)
    while engine.restarts == restarts or not engine.ready:  # it may be back before this looks
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    assert len(said) == made
    await engine.resume_generation()
    assert await kept == (before, "length")


@in_one_loop
async def test_a_paused_engine_with_nothing_open_is_replaced_once(engine) -> None:
    before, restarts = await text(engine, "earlier"), engine.restarts
    await engine.pause_generation(mode="keep")
    os.kill(engine.engine_pid, 9)
    while engine.restarts == restarts or not engine.ready:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.5)
    assert engine.ready
    assert engine.restarts == restarts + 1
    await engine.resume_generation()
    assert await text(engine, "later") == before


def test_it_sleeps_only_where_that_was_asked_for() -> None:
    llm = LLM(device="null", max_model_len=64)
    with pytest.raises(ConfigError, match="enable_sleep_mode"):
        llm.sleep()
    llm.shutdown()


@pytest.mark.parametrize("device", ["null", "cpu"])
def test_offline(device: str) -> None:
    llm = LLM(device=device, max_model_len=256, enable_sleep_mode=True, use_tqdm_on_load=False)
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=12)

    def made() -> list[int]:
        return list(llm.generate(["The river"], params, use_tqdm=False)[0].outputs[0].token_ids)

    before = made()
    llm.sleep(level=2)
    assert llm.is_sleeping()
    with pytest.raises(UnavailableError, match="wake_up"):
        made()
    llm.wake_up()
    assert made() == before
    llm.shutdown()
