"""An engine over two machines, as two process trees that reach each other by TCP: one text, one end, and faults between."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from loopback import free_port
from rank_streams import collect_texts

from thalweg import LLM, AsyncLLM, EngineArgs
from thalweg.engine.executor.node import HeadlessNode
from thalweg.errors import ConfigError, DeviceError

SIZES: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 4, "max_num_batched_tokens": 64, "dtype": "float32"}


class Node:
    """The second machine: the command that a user gives there."""

    def __init__(self, port: int) -> None:
        given = {"device": "cpu", "tensor_parallel_size": 2, "nnodes": 2, "node_rank": 1, "master_port": port, **SIZES}
        words = [w for name, value in given.items() for w in (f"--{name.replace('_', '-')}", str(value))]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "thalweg", "serve", "--headless", *words], stderr=subprocess.PIPE, text=True
        )

    @property
    def ranks(self) -> list[int]:
        pid = self.process.pid
        try:
            found = [int(c) for f in Path(f"/proc/{pid}/task").glob("*/children") for c in f.read_text().split()]
        except OSError:
            return []
        return [c for c in found if Path(f"/proc/{c}/cmdline").exists()]

    def kill(self) -> None:
        """The machine fails: everything on it is gone at once."""
        ranks = self.ranks
        self.process.kill()
        self.process.communicate()
        wait_until_gone(ranks)


def wait_until_gone(pids: list[int]) -> None:
    for _ in range(3000):
        if not any(Path(f"/proc/{p}").exists() for p in pids):
            return
        subprocess.run(["sleep", "0.01"], check=True)
    raise AssertionError(f"{pids} live on")


@pytest.fixture
def port() -> Iterator[int]:
    port = free_port()
    yield port
    with socket.create_server(("127.0.0.1", port)):  # given back
        pass


async def text_of_one() -> list[list[int]]:
    engine = await AsyncLLM.start(EngineArgs(device="cpu", **SIZES))
    try:
        return await collect_texts(engine)
    finally:
        await engine.shutdown()


FAULTS: dict[str, list[tuple[str, signal.Signals | None]]] = {
    "machine": [("machine", None)],
    "rank": [("rank", None), ("rank", signal.SIGKILL), ("rank", signal.SIGSTOP)],
}
"""What is killed, and the signal to its replacement while that starts."""


@pytest.mark.slow
@pytest.mark.parametrize("faults", ["machine", pytest.param("rank", marks=pytest.mark.nightly)])
async def test_requests_survive_the_second_machine_and_both_ends_end_together(port: int, faults: str) -> None:
    whole = await text_of_one()
    node = Node(port)
    patience: dict[str, Any] = {"max_restarts": 9, "hang_timeout": 30.0, "heartbeat_timeout": 6.0}
    args = EngineArgs(device="cpu", tensor_parallel_size=2, nnodes=2, master_port=port, **patience, **SIZES)
    engine = await AsyncLLM.start(args)
    try:
        assert await collect_texts(engine) == whole
        for who, then in FAULTS[faults]:
            begun = asyncio.Event()
            running = asyncio.create_task(collect_texts(engine, begun))
            await begun.wait()
            restarts = engine._supervisor.restarts
            if who == "machine":
                node.kill()
                node = Node(port)
            else:
                os.kill((struck := node.ranks[0]), signal.SIGKILL)
            if then is not None:
                while node.ranks in ([], [struck]):
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.5)
                os.kill(node.ranks[0], then)
            assert await asyncio.wait_for(running, 120) == whole, (who, then)
            assert engine._supervisor.restarts > restarts
        ranks = node.ranks
    except BaseException:
        node.kill()
        raise
    finally:
        await engine.shutdown()
    said = node.process.communicate(timeout=60)[1]
    assert node.process.returncode == 0
    assert "machine 0 has ended" in said
    wait_until_gone(ranks)


@pytest.mark.slow
def test_a_headless_machine_ends_with_a_killed_server(port: int) -> None:
    words = ["--device", "null", "--max-model-len", "64", "-tp", "2", "--nnodes", "2", "--master-port", str(port)]
    command = [sys.executable, "-m", "thalweg", "serve", *words]
    with (
        subprocess.Popen([*command, "--node-rank", "1", "--headless"], stderr=subprocess.PIPE, text=True) as node,
        subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True) as server,
    ):
        assert server.stderr is not None
        try:
            assert any(": serving " in line for line in server.stderr)
            ranks = [int(c) for c in Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()]
            server.kill()
            assert node.wait(60) == 0
        finally:
            server.kill()
            node.kill()
    assert len(ranks) == 1
    wait_until_gone(ranks)


@pytest.mark.slow
def test_a_machine_that_differs_is_refused_by_field_and_its_ranks_are_named_as_missing(port: int) -> None:
    other = EngineArgs(device="null", tensor_parallel_size=4, nnodes=2, node_rank=1, master_port=port, max_model_len=64)
    with ThreadPoolExecutor() as threads:
        refused = threads.submit(HeadlessNode(other).run)
        with pytest.raises(DeviceError, match=r"rank 1 of 2 \(machine 1 of 2\) did not come .* --node-rank 1 --headless"):
            LLM(
                device="null", tensor_parallel_size=2, nnodes=2, master_port=port, distributed_timeout_seconds=1,
                max_model_len=64,
            )  # fmt: skip
        with pytest.raises(ConfigError, match="tensor_parallel_size: it counts 4 ranks, and rank 0 counts 2"):
            refused.result()


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"tensor_parallel_size": 2, "nnodes": 3}, "nnodes: 3 machines do not divide 2 ranks"),
        ({"tensor_parallel_size": 2, "nnodes": 2, "node_rank": 2}, "node_rank must be less than nnodes"),
        ({"tensor_parallel_size": 2, "nnodes": 2, "node_rank": 1}, "node_rank: machine 0 runs the engine"),
        ({"node_rank": 1}, "node_rank: 1 is a machine of several"),
        ({"tensor_parallel_size": 2, "nnodes": 2, "master_addr": "192.0.2.1"}, "master_addr, master_port: cannot listen"),
        ({"tensor_parallel_size": 2, "nnodes": 2, "distributed_executor_backend": "uni"}, "nnodes: the executor uni"),
    ],
)
def test_sizes_and_addresses_that_cannot_be_are_refused_by_field(flags: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        LLM(device="null", max_model_len=64, **flags)
