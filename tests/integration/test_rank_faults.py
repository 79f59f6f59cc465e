"""Faults of an engine with two ranks: the same text, from as many tokens as there were, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rank_streams import collect_texts, list_ranks, wait_for_end

from thalweg import AsyncLLM, EngineArgs

ARGS = EngineArgs(
    device="cpu", dtype="float32", tensor_parallel_size=2, max_model_len=512, max_num_seqs=4, max_num_batched_tokens=64,
    heartbeat_timeout=1.5, hang_timeout=15.0, max_restarts=99, kv_cache_memory_bytes=1 << 22,
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
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[AsyncLLM]:
    """With these arguments, if the test gives some."""
    before = set(list_ranks())
    made = await AsyncLLM.start(msgspec.structs.replace(ARGS, **getattr(request, "param", {})))
    yield made
    await made.shutdown()
    await wait_for_end(before)
    left = [f for f in Path("/dev/shm").glob(f"{FOLDERS}*") if not Path(f"/proc/{f.name.split('-')[2]}").exists()]
    assert all({f.name for f in folder.iterdir()} <= {"owner"} for folder in left)  # removed by the next start


async def strike(engine: AsyncLLM, who: str, number: int) -> None:
    while not (found := processes(engine, who)):
        await asyncio.sleep(0.01)
    os.kill(found[0], number)


FAULTS: list[Any] = [
    (who, number, when)
    for who in ("rank", "engine")
    for number in (signal.SIGKILL, signal.SIGSTOP)
    for when in ("start", "prompt", "decode")
    if (who, number, when) != ("engine", signal.SIGSTOP, "start")  # no time limit of a start is a user's
]


FEW: list[Any] = [
    ("rank", signal.SIGKILL, "start"), ("rank", signal.SIGSTOP, "decode"), ("engine", signal.SIGKILL, "prompt"),
]  # fmt: skip
STAGED = {"tensor_parallel_size": 1, "pipeline_parallel_size": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "faults"),
    [
        ({}, FEW),
        pytest.param({}, [f for f in FAULTS if f not in FEW], marks=pytest.mark.nightly),
        (STAGED, [("rank", signal.SIGKILL, "decode")]),
        pytest.param(STAGED, [f for f in FAULTS if f[2] == "decode"], marks=pytest.mark.nightly),
    ],
    indirect=["engine"],
    ids=["tp", "tp-others", "pp", "pp-others"],
)
async def test_text_is_the_same_whatever_ends_a_rank(engine: AsyncLLM, faults: list[Any]) -> None:
    whole = await collect_texts(engine)
    for who, number, when in faults:
        begun = asyncio.Event()
        restarts = engine._supervisor.restarts
        running = asyncio.create_task(collect_texts(engine, begun))
        if when == "prompt":
            await asyncio.sleep(0.01)
        else:
            await begun.wait()
        if when == "start":
            await strike(engine, "engine", signal.SIGKILL)
            while engine._supervisor.pid is not None:
                await asyncio.sleep(0.001)
        await strike(engine, who, number)
        assert await asyncio.wait_for(running, 120) == whole, (who, number, when)
        assert engine._supervisor.restarts > restarts
