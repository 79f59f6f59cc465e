"""Block tables that stay on the device: steps read what the scheduler meant, whoever had the slot before and however late the
streams are; and only what changed is sent."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from thalweg.backends.torch_gpu.device import GpuDevice
from thalweg.backends.torch_gpu.host import HostRuntime
from thalweg.backends.torch_gpu.library import KernelSet
from thalweg.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from thalweg.engine.control.core import EngineCore
from thalweg.engine.control.executor import LaunchOnlyExecutor
from thalweg.engine.messages import EngineRequest, TokenSampling
from thalweg.engine.worker.runner import Runner
from thalweg.hal.device import DeviceInfo
from thalweg.hal.kv import KVSpec
from thalweg.hal.step import StateBox, StepBatch, StepResult, StepShape, TableRows

BLOCK, LENGTH, SEQS = 4, 64, 6
BUCKETS = tuple(StepShape(n, n, w, True) for n in (2, 4, SEQS) for w in (4, LENGTH // BLOCK + 1))


class World:
    """An engine's control plane on the GPU's device, whose streams are late. A step tells the tables it sees; `want` has those
    that the scheduler held when it was launched."""

    def __init__(self, groups: tuple[KVSpec, ...], blocks: int, kept: bool = True, depth: int = 2) -> None:
        self.runtime = HostRuntime(late=True)
        info = DeviceInfo("test", "test", 1 << 30, 1, ("float32",))
        self.device = GpuDevice(info, self.runtime, KernelSet())
        box = StateBox(self.device.alloc((1,), "int32"))
        self.runner = Runner(lambda shape, f: self.device.compile(_tell, None, box, shape, f), (), BUCKETS, unpadded=True)
        config = EngineConfig(
            model=ModelConfig(path="", architecture="x", dtype="float32", max_len=LENGTH, vocab=50, seed=0, load_format="dummy",
                              logprobs_mode="raw_logprobs", max_logprobs=0),
            device=DeviceConfig(platform="null"),
            cache=CacheConfig(block_tokens=BLOCK, groups=groups, blocks=(blocks,) * len(groups), tables_kept=kept),
            scheduler=SchedulerConfig(max_seqs=SEQS, token_budget=32, pipeline_depth=depth),
        )  # fmt: skip
        self.core = EngineCore(LaunchOnlyExecutor(config, self.launch))
        self.seen = self.kinds = 0

    def launch(self, batch: StepBatch) -> Any:
        tables = [g.table[batch.slots].copy() for g in self.core.kv.groups]
        kept = [np.array(g.kept)[batch.slots] for g in self.core.kv.groups]
        self.kinds += isinstance(batch.block_tables[0], TableRows)
        return Checked(self, self.runner.launch(batch), batch, tables, kept)

    def check(self, batch: StepBatch, tables: list[np.ndarray], kept: list[np.ndarray], result: StepResult) -> None:
        for g, (want, first) in enumerate(zip(tables, kept, strict=True)):
            got = result.extras[f"table {g}"]
            for s, tokens in enumerate(batch.context + batch.query):
                used = slice(int(first[s]), -(-int(tokens) // BLOCK))
                assert got[s, used].tolist() == want[s, used].tolist(), (g, s)
            assert not got[len(batch.slots) :].any()  # padding reads scratch
        self.seen += 1

    def serve(self, requests: int, seed: int) -> None:
        rng, left = random.Random(seed), requests
        shared = [rng.randint(1, 40) for _ in range(30)]
        running: set[int] = set()
        while left or running or self.core.has_work:
            if left and rng.random() < 0.5:
                prompt = shared[: rng.randint(0, 30)] + [rng.randint(1, 40) for _ in range(rng.randint(1, 8))]
                sampling = TokenSampling(max_tokens=rng.randint(1, 25))
                tokens = np.array(prompt, np.int32)
                self.core.add([EngineRequest(handle=left, tokens=tokens, prompt_len=tokens.size, sampling=sampling)])
                running.add(left)
                left -= 1
            if running and rng.random() < 0.05:
                gone = rng.choice(sorted(running))
                self.core.abort([gone])
                running.discard(gone)
            out = self.core.step()
            running -= {f.handle for f in out.finished} if out else set()


class Checked:
    """A launched step whose result is held against what it should have seen when it is read."""

    def __init__(self, world: World, pending: Any, *launched: Any) -> None:
        self._world, self._pending, self._launched = world, pending, launched

    def ready(self) -> bool:
        return bool(self._pending.ready())

    def result(self) -> StepResult:
        result: StepResult = self._pending.result()
        self._world.check(*self._launched, result)
        return result


def _tell(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
    tables = {f"table {g}": t for g, t in enumerate(batch.block_tables)}
    return state, StepResult(batch.slots[:, None] % 7 + 1, batch.emit.int(), extras=tables)


FULL = KVSpec("full", BLOCK, 1, (0,))
WINDOW = KVSpec("window", BLOCK, 1, (1,), 10)


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("groups", "blocks"), [((FULL,), 60), ((FULL,), 22), ((FULL, WINDOW), 26)])
@pytest.mark.sampled(2)
def test_every_step_sees_the_blocks_the_scheduler_meant(groups: tuple[KVSpec, ...], blocks: int, depth: int) -> None:
    """With few blocks sequences are preempted and their slots given to others, while steps that name them are on their way."""
    world = World(groups, blocks, depth=depth)
    world.serve(40, seed=depth)
    world.device.synchronize()
    assert world.kinds == world.seen > 50
    assert world.runtime.replays > 20


def test_few_blocks_mean_preemption() -> None:
    """Or the test above would prove little."""
    world = World((FULL,), 22)
    preempted: list[Any] = []
    preempt = world.core.scheduler._preempt
    world.core.scheduler._preempt = lambda *a: (preempted.append(a), preempt(*a))[1]  # type: ignore[method-assign]
    world.serve(40, seed=2)
    assert preempted


def test_a_block_is_sent_once_and_a_step_that_needs_no_new_one_sends_nothing() -> None:
    world, sent = World((FULL,), 60), []
    launch = world.runner.launch

    def count(batch: StepBatch) -> Any:
        sent.append(sum(len(t.places) for t in batch.block_tables))
        return launch(batch)

    world.runner.launch = count  # type: ignore[method-assign]
    tokens = np.arange(1, 11, dtype=np.int32)
    world.core.add([EngineRequest(handle=1, tokens=tokens, prompt_len=10, sampling=TokenSampling(max_tokens=30))])
    while world.core.has_work:
        world.core.step()
    blocks = -(-(10 + 29) // BLOCK)
    assert sum(sent) == blocks
    assert sent.count(0) >= len(sent) - blocks


def test_a_graph_is_one_however_the_tables_change() -> None:
    """Widths are the bucket's, and what changed is sent beside it."""
    world = World((FULL,), 60)
    tokens = np.arange(1, 4, dtype=np.int32)
    world.core.add([EngineRequest(handle=1, tokens=tokens, prompt_len=3, sampling=TokenSampling(max_tokens=12))])
    while world.core.has_work:
        world.core.step()
    assert world.runtime.captures == 1
    assert world.runtime.replays > 8


def test_batches_with_copies_of_their_tables_are_taken_too() -> None:
    world = World((FULL, WINDOW), 40, kept=False)
    world.serve(15, seed=5)
    assert world.kinds == 0
    assert world.seen > 50
