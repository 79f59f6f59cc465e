"""Faults of an engine with two ranks: the same text, from as many tokens as there were, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rank_streams import collect_texts, list_ranks, wait_for_end

from thalweg import AsyncLLM, EngineArgs

ARGS = EngineArgs(
    device="cpu", dtype="float32", tensor_parallel_size=2, max_model_len=512, max_num_seqs=4, max_num_batched_tokens=64,
    heartbeat_timeout=4.0, hang_timeout=15.0, max_restarts=99, kv_cache_memory_bytes=1 << 22,
)  # fmt: skip
FOLDERS = "thalweg-ranks-"


def processes(engine: AsyncLLM, who: str) -> list[int]:
    """Of the engine, or of its other rank. Empty while there is none."""
    pid = engine._supervisor.pid or starting()
    if pid is None or who == "engine":
        return [pid] if pid else []
    try:
        found = [int(c) for f in Path(f"/proc/{pid}/task").glob("*/children") for c in f.read_text().split()]
        return [c for c in found if b"executor.rank" in Path(f"/proc/{c}/cmdline").read_bytes()]
    except OSError:
        return []


def starting() -> int | None:
    """The engine's process that is starting: the one with a rank."""
    for f in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        for child in f.read_text().split():
            for g in Path(f"/proc/{child}/task").glob("*/children"):
                if any(b"executor.rank" in Path(f"/proc/{c}/cmdline").read_bytes() for c in g.read_text().split()):
                    return int(child)
    return None


@pytest.fixture
async def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncLLM]:
    """With these arguments, if the test gives some."""
    before, own, start = set(list_ranks()), set[int](), subprocess.Popen.__init__

    def record(self: Any, *args: Any, **more: Any) -> None:
        start(self, *args, **more)
        own.add(self.pid)

    monkeypatch.setattr(subprocess.Popen, "__init__", record)
    made = await AsyncLLM.start(msgspec.structs.replace(ARGS, **getattr(request, "param", {})))
    yield made
    await made.shutdown()
    await wait_for_end(before)
    assert own
    left = [f for f in Path("/dev/shm").glob(f"{FOLDERS}*") if int(f.name.split("-")[2]) in own]
    assert all({f.name for f in folder.iterdir()} <= {"owner"} for folder in left)  # removed by the next start


FAULTS: list[Any] = [
    (who, number, when)
    for who in ("rank", "engine")
    for number in (signal.SIGKILL, signal.SIGSTOP)
    for when in ("start", "load", "rejoin", "prompt", "capture", "decode", "idle")
    if not (who == "engine" and number == signal.SIGSTOP and when in ("start", "load"))  # a start has no time limit
    if not (who == "engine" and when == "rejoin")
]
"""start, load: of a new engine. rejoin: the replacement of a lost rank starts. capture: first tokens, as steps are recorded."""
FEW: list[Any] = [
    ("rank", signal.SIGKILL, "start"), ("rank", signal.SIGSTOP, "decode"), ("engine", signal.SIGKILL, "prompt"),
]  # fmt: skip
STORED = {"kv_offloading_size": 0.02}
STAGED = {"tensor_parallel_size": 1, "pipeline_parallel_size": 2}


def others(who: str) -> list[Any]:
    return [fault for fault in FAULTS if fault[0] == who and fault not in FEW]


async def strike(engine: AsyncLLM, who: str, number: int, when: str, running: dict[str, asyncio.Event]) -> None:
    """At this moment, of an engine that streams."""
    if when == "prompt":
        await asyncio.sleep(0.01)
    elif when != "idle":
        await running["first" if when == "capture" else "begun"].wait()
    gone = await find(engine, "rank" if when == "rejoin" else "engine") if when in ("start", "load", "rejoin") else None
    if gone is not None:
        os.kill(gone, signal.SIGKILL)
        while engine._supervisor.pid is not None:
            await asyncio.sleep(0.001)
    pid = await find(engine, who, gone)
    while when == "load" and "model.safetensors" not in Path(f"/proc/{pid}/maps").read_text():
        await asyncio.sleep(0.001)
    os.kill(pid, number)


async def find(engine: AsyncLLM, who: str, but: int | None = None) -> int:
    while not (found := [pid for pid in processes(engine, who) if pid != but]):
        await asyncio.sleep(0.005)
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "faults"),
    [
        ({}, FEW),
        pytest.param({}, others("rank"), marks=pytest.mark.nightly),
        pytest.param({}, others("engine"), marks=pytest.mark.nightly),
        pytest.param(STAGED, [("rank", signal.SIGKILL, "decode")], marks=pytest.mark.nightly),
        pytest.param(STAGED, [f for f in FAULTS if f[2] == "decode"], marks=pytest.mark.nightly),
        pytest.param(STORED, [("rank", signal.SIGKILL, "decode")] * 2, marks=pytest.mark.nightly),
    ],
    indirect=["engine"],
    ids=["tp", "tp-rank", "tp-engine", "pp", "pp-others", "stored"],
)
async def test_text_is_the_same_whatever_ends_a_rank(engine: AsyncLLM, faults: list[Any]) -> None:
    whole = await collect_texts(engine)
    supervisor = engine._supervisor
    for who, number, when in faults:
        events = {"begun": asyncio.Event(), "first": asyncio.Event()}
        restarts, pid, before = supervisor.restarts, supervisor.pid, dict(supervisor.ranks.latest)
        running = None if when == "idle" else asyncio.create_task(collect_texts(engine, **events))
        await strike(engine, who, number, when, events)
        while running is None and supervisor.restarts == restarts:  # without a request
            await asyncio.sleep(0.01)
        assert await asyncio.wait_for(running or collect_texts(engine), 120) == whole, (who, number, when)
        assert supervisor.restarts > restarts
        if who == "rank" and when not in ("start", "load", "rejoin"):  # the new rank reads its share, and rank 0 nothing
            now = supervisor.ranks.latest
            assert (supervisor.pid, now[0]) == (pid, before[0])
            assert now[1].pid != before[1].pid
            assert now[1].read_bytes == before[1].read_bytes > 0


@pytest.mark.nightly
@pytest.mark.parametrize("engine", [{"tensor_parallel_size": 4}], indirect=True)
async def test_of_four_ranks_those_that_live_keep_their_weights(engine: AsyncLLM) -> None:
    whole = await collect_texts(engine)
    supervisor = engine._supervisor
    before, begun = dict(supervisor.ranks.latest), asyncio.Event()
    running = asyncio.create_task(collect_texts(engine, begun))
    await begun.wait()
    os.kill(before[2].pid, signal.SIGKILL)
    assert await asyncio.wait_for(running, 120) == whole
    now = supervisor.ranks.latest
    assert [now[i] == before[i] for i in range(4)] == [True, True, False, True]
    assert now[2].read_bytes == before[2].read_bytes
    assert (engine.restarts, supervisor.ranks.restarts) == (1, {0: 0, 1: 0, 2: 1, 3: 0})
    for rank in (1, 3):  # one of them does not answer in time: all start again
        os.kill(now[rank].pid, signal.SIGSTOP)
    assert await asyncio.wait_for(collect_texts(engine), 120) == whole
    assert all(supervisor.ranks.latest[i].pid != before[i].pid for i in range(4))
