"""Nothing is lost when the engine process dies: streams pause, and go on with the same tokens."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import msgspec
import pytest

from thalweg import AsyncLLM, EngineArgs, SamplingParams
from thalweg.engine.client import reserve
from thalweg.errors import EngineDeadError
from thalweg.params import RequestOutputKind

pytestmark = pytest.mark.slow  # each starts processes
ARGS = EngineArgs(device="cpu", max_model_len=512, max_num_seqs=32, threads=1, use_tqdm_on_load=False, max_restarts=50)
HASH = EngineArgs(device="null", max_model_len=512, max_num_seqs=64, additional_config={"base": 0.002}, max_restarts=50)


@pytest.fixture
async def start_engine():
    """start_engine(args) -> AsyncLLM; all are shut down after the test, whatever came of it."""
    made: list[AsyncLLM] = []

    async def start(args: EngineArgs) -> AsyncLLM:
        made.append(await AsyncLLM.start(args))
        return made[-1]

    yield start
    for engine in made:
        await engine.shutdown()


def params(i: int, **more) -> SamplingParams:
    """Greedy and seeded ones in turn."""
    draw = {"temperature": 0.9, "seed": i} if i % 2 else {"temperature": 0.0}
    fields = {"max_tokens": 60, "ignore_eos": True, "output_kind": RequestOutputKind.DELTA, **draw, **more}
    return SamplingParams(**fields)


async def collect(engine: AsyncLLM, i: int, **more) -> tuple[list[int], str]:
    ids, text = [], ""
    async for out in engine.generate(f"Stone number {i} lies", params(i, **more), f"r{i}-{time.monotonic()}"):
        ids += out.outputs[0].token_ids
        text += out.outputs[0].text
    return ids, text


def alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("args", "n"), [pytest.param(ARGS, 8, id="cpu"), pytest.param(HASH, 24, id="hash model")])
async def test_streams_survive_a_killed_engine_with_no_token_lost_or_doubled(start_engine, args, n):
    engine = await start_engine(args)
    undisturbed = await asyncio.gather(*(collect(engine, i) for i in range(n)))
    tasks = [asyncio.create_task(collect(engine, i)) for i in range(n)]
    for kills in (1, 2):
        await asyncio.sleep(0.05)
        os.kill(engine.engine_pid, signal.SIGKILL)
        while engine.restarts < kills or not engine.ready:  # it may be back before this looks
            await asyncio.sleep(0.01)
    assert await asyncio.gather(*tasks) == undisturbed
    assert engine.restarts == 2


async def test_the_process_that_stands_by_becomes_the_engine_and_ends_with_its_client(start_engine, monkeypatch):
    expected = []

    class Recorded(reserve.Standby):
        def __init__(self, device, told=None):
            expected.append(told)
            super().__init__(device, told)

    monkeypatch.setattr(reserve, "STANDBY_AFTER", 0.0)
    monkeypatch.setattr(reserve, "Standby", Recorded)
    engine = await start_engine(HASH)

    async def standby() -> int:
        while not (pid := engine._supervisor.standby_pid):
            await asyncio.sleep(0.01)
        return pid

    first = await standby()
    stream = asyncio.create_task(collect(engine, 1))
    os.kill(engine.engine_pid, signal.SIGKILL)
    assert len((await stream)[0]) == 60
    assert engine.engine_pid == first
    second = await standby()
    os.kill(second, signal.SIGKILL)  # nobody is harmed by the loss of one that only waits, and another takes its place
    while (replaced := await standby()) == second:
        await asyncio.sleep(0.01)
    assert not Path(f"/proc/{second}").exists(), "reaped"
    os.kill(engine.engine_pid, signal.SIGKILL)
    assert len((await collect(engine, 2))[0]) == 60
    assert engine.engine_pid == replaced
    third = await standby()
    await engine.shutdown()
    assert expected == [None] * 4  # who only waits holds no memory ready for weights
    for _ in range(6000):
        if not alive(third):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the process that stood by outlives the client")


async def test_a_poison_fails_alone_and_the_others_finish(start_engine, monkeypatch):
    monkeypatch.setenv("THALWEG_FAILPOINTS", "engine.step:token=1001:crash")
    engine = await start_engine(HASH)
    poison = {"prompt_token_ids": [5, 1001, 6]}
    innocents = [asyncio.create_task(collect(engine, i, allowed_token_ids=[10, 11, 12])) for i in range(31)]
    await asyncio.sleep(0.02)
    with pytest.raises(EngineDeadError, match="alone"):
        async for _ in engine.generate(poison, params(0), "poison"):
            pass
    results = await asyncio.gather(*innocents)
    assert all(len(ids) == 60 for ids, _ in results)
    assert engine.restarts <= 2


async def test_a_stopped_engine_is_noticed_and_replaced(start_engine):
    engine = await start_engine(msgspec.structs.replace(HASH, heartbeat_timeout=2.0))
    undisturbed = await collect(engine, 3, max_tokens=200)
    task = asyncio.create_task(collect(engine, 3, max_tokens=200))
    await asyncio.sleep(0.05)
    os.kill(engine.engine_pid, signal.SIGSTOP)
    assert await task == undisturbed
    assert engine.restarts


async def test_a_hang_with_heartbeats_is_noticed(start_engine, monkeypatch):
    monkeypatch.setenv("THALWEG_FAILPOINTS", "engine.step:token=1001:hang")
    engine = await start_engine(msgspec.structs.replace(HASH, hang_timeout=3.0))
    good = asyncio.create_task(collect(engine, 2, allowed_token_ids=[10, 11], max_tokens=300))
    await asyncio.sleep(0.02)
    with pytest.raises(EngineDeadError, match="alone"):
        async for _ in engine.generate({"prompt_token_ids": [5, 1001, 6]}, params(0), "hang"):
            pass
    assert len((await good)[0]) == 300


async def test_requests_made_while_the_engine_restarts_wait_for_it(start_engine):
    engine = await start_engine(msgspec.structs.replace(HASH, standby_engine=False))  # one that stands by is ready at once
    before = await collect(engine, 1)
    os.kill(engine.engine_pid, signal.SIGKILL)
    while engine.ready:
        await asyncio.sleep(0.005)
    assert engine.why_not_ready
    assert await collect(engine, 1) == before
