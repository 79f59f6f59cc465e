"""Several engines behind one client: texts are those of one engine, requests are shared out, and a death loses nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from thalweg import LLM, AsyncLLM, EngineArgs, SamplingParams
from thalweg.config import check_args
from thalweg.engine.client.fleet import REMEMBERED, SLACK, SPAN, Fleet, add_stats
from thalweg.engine.messages import EngineRequest, Stats, TokenSampling
from thalweg.errors import ConfigError, EngineDeadError, RequestError, UnavailableError
from thalweg.params import RequestOutputKind

ONE = EngineArgs(
    device="null", max_model_len=512, max_num_seqs=8, additional_config={"base": 0.002}, max_restarts=9, standby_engine=False,
    enable_sleep_mode=True,
)  # fmt: skip
TWO = msgspec.structs.replace(ONE, data_parallel_size=2)


@pytest.fixture
async def start() -> AsyncIterator[Any]:
    made: list[AsyncLLM] = []

    async def start_engine(args: EngineArgs) -> AsyncLLM:
        made.append(await AsyncLLM.start(args))
        return made[-1]

    yield start_engine
    for engine in made:
        await engine.shutdown()


async def collect(engine: AsyncLLM, i: int, tokens: int = 60) -> list[int]:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=i, temperature=0.9, output_kind=RequestOutputKind.DELTA)
    return [
        t async for out in engine.generate(f"{i} stones", params, f"{i} {time.monotonic()}") for t in out.outputs[0].token_ids
    ]


async def texts(engine: AsyncLLM, count: int = 12) -> list[list[int]]:
    return await asyncio.gather(*(collect(engine, i) for i in range(count)))


async def run_on_all(engine: AsyncLLM, count: int = 12) -> asyncio.Task[list[list[int]]]:
    """Requests of which every engine runs some. Others are sent where a slow machine sees none before they end."""
    fleet: Fleet = engine._supervisor
    while True:
        running = asyncio.create_task(texts(engine, count))
        while not running.done():
            if all(member.open and member.supervisor._running for member in fleet._members):
                return running
            await asyncio.sleep(0.001)
        await running


@pytest.mark.slow
async def test_texts_are_those_of_one_engine_and_counters_are_sums(start: Any) -> None:
    want = await texts(await start(ONE))
    engine = await start(TWO)
    assert await texts(engine) == want
    fleet = engine._supervisor
    each = [member.latest for member in fleet._members]
    assert all(s.generated_tokens > 0 for s in each)
    assert engine.stats().generated_tokens == sum(s.generated_tokens for s in each) == 12 * 60
    assert engine.stats().blocks_total == 2 * each[0].blocks_total
    assert list(engine.stats_by_engine().values()) == each
    assert [len(member.open) for member in fleet._members] == [0, 0]
    await engine.sleep(level=1)
    assert engine.state == "sleeping"
    await engine.wake_up()
    assert await texts(engine, 4) == want[:4]
    assert engine.stats().generated_tokens == 16 * 60  # the new processes counted from 0


@pytest.mark.slow  # the loss of an engine is quicker, and replay has tests
async def test_an_engine_that_is_killed_gets_its_requests_back(start: Any) -> None:
    engine = await start(TWO)
    want = await texts(engine)
    again = await run_on_all(engine)
    os.kill(engine._supervisor.members[1].pid, signal.SIGKILL)
    assert await again == want
    while engine.restarts == 0:  # the requests may have ended just before
        await asyncio.sleep(0.01)
    assert [s.restarts for s in engine._supervisor.members] == [0, 1]
    assert engine.restarts == 1


@pytest.mark.slow
async def test_requests_of_an_engine_that_is_lost_go_on_at_the_others_and_the_last_loss_is_the_end(start: Any) -> None:
    engine = await start(msgspec.structs.replace(TWO, max_restarts=0))
    want = await texts(engine)
    again = await run_on_all(engine)
    fleet = engine._supervisor
    os.kill(fleet.members[0].pid, signal.SIGKILL)
    assert await again == want
    assert [member.lost for member in fleet._members] == [True, False]
    assert (engine.state, engine.why_not_ready) == ("ready", "")
    assert await texts(engine, 3) == want[:3]
    os.kill(fleet.members[1].pid, signal.SIGKILL)
    while engine.state == "ready":
        await asyncio.sleep(0.01)
    with pytest.raises(EngineDeadError):
        await texts(engine, 1)


@pytest.mark.nightly  # the same on `null` is quicker
async def test_on_a_processor_a_killed_engine_loses_nothing(start: Any) -> None:
    more = {"device": "cpu", "additional_config": None, "use_tqdm_on_load": False}
    want = await texts(await start(msgspec.structs.replace(ONE, **more)), 6)
    engine = await start(msgspec.structs.replace(TWO, **more))
    assert await texts(engine, 6) == want
    again = await run_on_all(engine, 6)
    os.kill(engine._supervisor.members[0].pid, signal.SIGKILL)
    assert await again == want
    assert engine.restarts == 1


@pytest.mark.slow
async def test_an_engine_that_cannot_start_ends_the_start(start: Any) -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        await start(msgspec.structs.replace(TWO, max_model_len=1 << 30))


def test_more_than_one_engine_is_refused_where_there_is_one_only() -> None:
    with pytest.raises(ConfigError, match="data_parallel_size: this engine runs in the calling thread"):
        LLM(device="null", data_parallel_size=2)
    from thalweg.engine.planning.resolve import configure_platform
    from thalweg.hal.discovery import load

    class Single(type(load("null"))):  # type: ignore[misc]
        shares_device = False

    with pytest.raises(ConfigError, match="would open one device"):
        configure_platform(TWO, Single())
    assert configure_platform(msgspec.structs.replace(TWO, additional_config=None), load("cpu")).options.threads >= 1


def request(prompt: list[int], salt: str = "") -> EngineRequest:
    return EngineRequest(
        handle=1,
        tokens=np.array(prompt, np.int32),
        prompt_len=len(prompt),
        sampling=TokenSampling(max_tokens=1),
        cache_salt=salt,
    )


def idle_fleet(engines: int) -> Fleet:
    fleet = Fleet(
        engines, ONE, SimpleNamespace(), iter(()), on_outputs=print, on_convicted=print, on_dead=print,  # type: ignore
    )  # fmt: skip
    for member in fleet._members:
        member.supervisor = SimpleNamespace(why_not_ready="", recovering=False)  # type: ignore[assignment]
    return fleet


def test_a_prompt_goes_where_its_beginning_was_unless_that_engine_has_much_to_do() -> None:
    fleet, shared = idle_fleet(3), list(range(3 * SPAN))
    first = fleet.choose(request([*shared, 1]))
    others = {fleet.choose(request([7 + i] * SPAN)) for i in range(6)}
    assert others == {0, 1, 2}  # equal loads are taken in turn
    assert [fleet.choose(request([*shared, 2 + i])) for i in range(5)] == [first] * 5
    assert fleet.choose(request([*shared[: 2 * SPAN], *range(900, 900 + SPAN)])) == first
    fleet._members[first].open.update(dict.fromkeys(range(SLACK + 1)))
    assert fleet.choose(request([*shared, 99])) != first
    fleet._members[0].supervisor.why_not_ready = "it is away"  # type: ignore[misc]
    assert 0 not in {fleet.choose(request([i])) for i in range(9)}


def test_beginnings_of_prompts_are_told_apart_by_salt_and_forgotten_in_time() -> None:
    affinity = idle_fleet(2)._affinity
    prompt = list(range(2 * SPAN))
    assert affinity.find(affinity.keys(request(prompt))) is None
    affinity.remember(affinity.keys(request(prompt)), 1)
    assert affinity.find(affinity.keys(request([*prompt, 5]))) == 1
    assert affinity.find(affinity.keys(request(prompt, "another"))) is None
    affinity.remember(range(REMEMBERED), 0)
    assert affinity.find(affinity.keys(request(prompt))) is None
    assert len(affinity.seen) == REMEMBERED


def test_lists_of_counters_add_up_to_the_longer() -> None:
    a, b = (Stats(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, accepted_per_position=counts) for counts in ([3, 1], [2]))
    assert add_stats(a, b) == Stats(2, 4, 6, 8, 10, 12, 14, 16, 18, 20, accepted_per_position=[5, 1])


async def scale(engine: AsyncLLM, size: int, drain: float = 60) -> None:
    await engine.scale_elastic_ep(size, drain)
    assert len(engine._supervisor.members) == engine.config.engines == engine.get_world_size() == size


@pytest.mark.slow
async def test_engines_come_and_go_while_requests_run(start: Any) -> None:
    args = msgspec.structs.replace(ONE, enable_elastic_ep=True, elastic_ep_max_dp_size=3, additional_config={"base": 0.005})
    engine = await start(args)
    want = await texts(engine)
    running = asyncio.create_task(texts(engine))
    growing = asyncio.create_task(engine.scale_elastic_ep(3))
    while not await engine.is_scaling_elastic_ep():
        await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="changing already"):
        await engine.scale_elastic_ep(2)
    assert await texts(engine, 2) == want[:2]  # none is refused meanwhile
    await growing
    assert await running == want
    running = await run_on_all(engine)
    fleet = engine._supervisor
    pids = [s.pid for s in fleet.members]
    await scale(engine, 1, drain=0)  # those of two engines move
    assert [Path(f"/proc/{pid}").exists() for pid in pids] == [True, False, False]
    assert await running == want
    assert engine.stats().generated_tokens >= 3 * 12 * 60
    running = asyncio.create_task(texts(engine))
    await scale(engine, 2)
    engine._supervisor._members[0].open, kept = dict.fromkeys(range(-99, 0)), engine._supervisor._members[0].open
    late = asyncio.create_task(collect(engine, 0))
    await asyncio.sleep(0.05)
    engine._supervisor._members[0].open = kept
    pid = engine._supervisor.members[1].pid
    await scale(engine, 1)  # it finishes there
    assert await late == want[0]
    assert not Path(f"/proc/{pid}").exists()
    assert await running == want
    with pytest.raises(RequestError, match=r"between 1 and 3 \(elastic_ep_max_dp_size\)"):
        await engine.scale_elastic_ep(4)


@pytest.mark.nightly  # a change that fails is quicker shown by its parts
async def test_an_engine_that_cannot_be_added_changes_nothing(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await start(msgspec.structs.replace(ONE, enable_elastic_ep=True, elastic_ep_max_dp_size=2))
    want = await texts(engine, 3)
    fleet = engine._supervisor
    good, fleet._args = fleet._args, msgspec.structs.replace(fleet._args, max_model_len=1 << 30)
    with pytest.raises(UnavailableError, match=r"no engine was added: .*max_model_len"):
        await engine.scale_elastic_ep(2)
    assert (engine.config.engines, engine.state, fleet._joining) == (1, "ready", [])
    fleet._args = good
    await engine.pause_generation("keep")
    await scale(engine, 2)
    late = asyncio.create_task(texts(engine, 3))
    await asyncio.sleep(0.2)
    assert [s.paused for s in fleet.members] == [True, True]
    assert not late.done()
    await engine.resume_generation()
    assert await late == want


@pytest.mark.nightly  # the death of a rank and that of an engine have tests
async def test_engines_of_several_ranks_share_requests_and_lose_none(start: Any) -> None:
    more = {"device": "cpu", "dtype": "float32", "additional_config": None, "kv_cache_memory_bytes": 1 << 22}
    want = await texts(await start(msgspec.structs.replace(ONE, **more)), 6)
    engine = await start(msgspec.structs.replace(TWO, **more, tensor_parallel_size=2))
    assert engine.get_world_size() == 4
    running = await run_on_all(engine, 6)
    pid = engine._supervisor._members[0].supervisor.pid
    children = [int(c) for f in Path(f"/proc/{pid}/task").glob("*/children") for c in f.read_text().split()]
    (rank,) = (c for c in children if b"executor.rank" in Path(f"/proc/{c}/cmdline").read_bytes())
    os.kill(rank, signal.SIGKILL)
    assert await asyncio.wait_for(running, 120) == want


def test_a_server_behind_a_balancer_has_its_engines_only() -> None:
    def engines(**fields: Any) -> tuple[int, int]:
        args = EngineArgs(data_parallel_size=4, **fields)
        check_args(args)
        return args.local_engines, args.first_engine

    assert engines() == (4, 0)
    assert engines(data_parallel_rank=2) == engines(data_parallel_rank=2, data_parallel_external_lb=True) == (1, 2)
    hybrid = {"data_parallel_hybrid_lb": True, "data_parallel_size_local": 2}
    assert engines(**hybrid, data_parallel_start_rank=2) == (2, 2)
    for fields, said in (
        ({"data_parallel_rank": 4}, "data_parallel_rank must be less than data_parallel_size"),
        ({"data_parallel_external_lb": True}, "data_parallel_external_lb: which of the engines"),
        ({"data_parallel_hybrid_lb": True}, "data_parallel_hybrid_lb: how many of the engines"),
        ({"data_parallel_size_local": 2}, "data_parallel_size_local: a server runs all of its 4 engines"),
        ({"data_parallel_start_rank": 1}, "data_parallel_start_rank is of one of several servers"),
        ({**hybrid, "data_parallel_start_rank": 3}, "engines 3 to 4 are not all of data_parallel_size 4"),
        ({**hybrid, "data_parallel_rank": 1}, "data_parallel_hybrid_lb: with data_parallel_rank"),
        ({**hybrid, "enable_elastic_ep": True}, "enable_elastic_ep: the balancer in front decides"),
        ({"elastic_ep_max_dp_size": 5}, "elastic_ep_max_dp_size: the number of engines is fixed"),
        ({"enable_elastic_ep": True, "elastic_ep_max_dp_size": 3}, r"must be at least data_parallel_size \(4\)"),
    ):
        with pytest.raises(ConfigError, match=said):
            engines(**fields)
