"""AsyncLLM that is made without awaiting, pauses, sleeps and wakes: what was kept says what it would have said."""

from __future__ import annotations

import asyncio

import pytest

from thalweg import AsyncLLM, EngineArgs, SamplingParams
from thalweg.errors import EngineDeadError, NotSupportedError, RequestError
from thalweg.params import RequestOutputKind

pytestmark = pytest.mark.slow  # each starts processes
ARGS = EngineArgs(
    device="null",
    max_model_len=512,
    max_num_seqs=16,
    additional_config={"base": 0.002},
    standby_engine=False,
    max_restarts=0,
    enable_sleep_mode=True,
)
PARAMS = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0, output_kind=RequestOutputKind.DELTA)


async def tokens(engine: AsyncLLM, name: str, began: asyncio.Event | None = None) -> tuple[list[int], str | None]:
    """(tokens, finish reason) of one request."""
    ids: list[int] = []
    async for out in engine.generate("a stone", PARAMS, name):
        ids += out.outputs[0].token_ids
        if began is not None and ids:
            began.set()
    return ids, out.outputs[0].finish_reason


async def test_an_engine_made_without_awaiting_starts_when_it_is_used_and_ends_when_told():
    engine = AsyncLLM.from_engine_args(ARGS)
    assert engine.is_running
    assert not engine.ready
    first, second = await asyncio.gather(tokens(engine, "a"), tokens(engine, "b"))  # both wait for one start
    assert first == second
    assert len(first[0]) == 40
    assert engine.ready
    assert await engine.get_supported_tasks() == ("generate",)
    with pytest.raises(NotSupportedError, match="collective_rpc"):
        await engine.collective_rpc("x")
    with pytest.raises(RequestError, match="data_parallel_rank"):
        await anext(engine.generate("a", PARAMS, "c", data_parallel_rank=1))
    cut = engine.generate([5] * 30, PARAMS, "d", tokenization_kwargs={"truncate_prompt_tokens": 4}, prompt_text="said")
    out = await anext(cut)
    assert (out.prompt, len(out.prompt_token_ids)) == ("said", 4)
    await cut.aclose()
    await engine.shutdown()
    assert engine.errored
    assert engine.is_stopped
    with pytest.raises(EngineDeadError):
        await anext(engine.generate("a", PARAMS, "e"))


def test_what_is_wrong_with_a_model_is_told_before_any_loop_runs(tmp_path):
    with pytest.raises(Exception, match="not a model directory"):
        AsyncLLM.from_engine_args(EngineArgs(model=str(tmp_path)))
    made = AsyncLLM.from_engine_args(ARGS)  # and no loop is needed to make one

    async def use() -> int:
        try:
            return len((await tokens(made, "a"))[0])
        finally:
            await made.shutdown()

    assert asyncio.run(use()) == 40


@pytest.mark.parametrize("how", ["pause", "sleep"])
async def test_what_is_kept_goes_on_and_what_comes_meanwhile_waits(how):
    engine = await AsyncLLM.start(ARGS)
    try:
        want = await tokens(engine, "want")
        began = asyncio.Event()
        kept = asyncio.create_task(tokens(engine, "kept", began))
        await began.wait()
        await (engine.pause_generation("keep") if how == "pause" else engine.sleep(1, "keep"))
        assert await engine.is_paused() is (how == "pause")
        assert await engine.is_sleeping() is (how == "sleep")
        assert (engine.engine_pid is None) is (how == "sleep")
        late = asyncio.create_task(tokens(engine, "late"))
        await asyncio.sleep(0.2)
        assert not kept.done()
        assert not late.done()
        if how == "sleep":
            await engine.resume_generation()  # which wakes nobody
            assert await engine.is_sleeping()
        await (engine.resume_generation() if how == "pause" else engine.wake_up())
        assert await kept == want
        assert await late == want
        assert not await engine.is_sleeping()
    finally:
        await engine.shutdown()


async def test_a_pause_aborts_or_waits_for_those_inside():
    engine = await AsyncLLM.start(ARGS)
    try:
        for mode, reason in (("abort", "abort"), ("wait", "length")):
            began = asyncio.Event()
            inside = asyncio.create_task(tokens(engine, mode, began))
            await began.wait()
            await engine.pause_generation(mode)
            assert (await inside)[1] == reason
            await engine.resume_generation()
        began = asyncio.Event()
        inside = asyncio.create_task(tokens(engine, "long", began))
        await began.wait()
        with pytest.raises(TimeoutError):
            await engine.wait_for_requests_to_drain(0.001)
        assert (await inside)[1] == "length"
        with pytest.raises(RequestError, match="mode"):
            await engine.pause_generation("later")
    finally:
        await engine.shutdown()
