"""Ranks as actors of a Ray cluster of two nodes: the text of one rank, also when an actor is killed, and nothing left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_streams import collect_texts, list_ranks, wait_for_end

from thalweg import LLM, AsyncLLM, EngineArgs
from thalweg.errors import ConfigError, DeviceError

SIZES: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 4, "max_num_batched_tokens": 64, "dtype": "float32"}


NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes with room for a rank each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        made.add_node(**NODE)
        monkeypatch.setenv("RAY_ADDRESS", made.address)
        yield made
    finally:
        made.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["actor", pytest.param("node", marks=pytest.mark.nightly)])
async def test_requests_survive_an_actor_and_leave_the_cluster_free(cluster: Any, who: str) -> None:
    one = await AsyncLLM.start(EngineArgs(device="cpu", **SIZES))
    whole = await collect_texts(one)
    await one.shutdown()
    before = set(list_ranks())
    engine = await AsyncLLM.start(
        EngineArgs(device="cpu", tensor_parallel_size=2, distributed_executor_backend="ray", max_restarts=9, **SIZES)
    )
    try:
        assert await collect_texts(engine) == whole
        begun = asyncio.Event()
        running = asyncio.create_task(collect_texts(engine, begun))
        await begun.wait()
        (rank,) = set(list_ranks()) - before
        if who == "actor":
            os.kill(parent(rank), signal.SIGKILL)
        else:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            cluster.add_node(**NODE)
        assert await asyncio.wait_for(running, 120) == whole
        assert engine._supervisor.restarts == 1
        with pytest.raises(DeviceError, match=r"no room for 4 ranks within 1 s .* 2 are there and 0 free"):
            await asyncio.to_thread(
                LLM, device="null", tensor_parallel_size=4, distributed_executor_backend="ray", max_model_len=64,
                distributed_timeout_seconds=1,
            )  # fmt: skip
    finally:
        await engine.shutdown()
    await wait_for_end(before)


def test_ray_is_asked_for_by_name_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigError, match=r"ray is not installed; pip install 'thalweg\[ray\]'"):
        LLM(device="null", tensor_parallel_size=2, distributed_executor_backend="ray", max_model_len=64)
