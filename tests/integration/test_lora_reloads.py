"""Adapters loaded, reloaded under the same name and unloaded under streams, while an engine process is killed."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import signal
from pathlib import Path

import pytest
import torch
from lora_files import ALL, write_adapter
from zoo import load_reference, make_checkpoint

from thalweg import AsyncLLM, EngineArgs, SamplingParams
from thalweg.errors import UnavailableError
from thalweg.server.core.adapters import ServedAdapters

PROMPT = list(b"the same prompt for all")
TOKENS, STREAMS, NAMES = 8, 8, 3
RELOADS = {False: 60, True: 1000}
"""Changes of a name, by whether the test runs at night."""
GROWTH = 12 << 20
"""Bytes that both processes may grow by in the last third of 1,000 changes. One adapter of these has 0.2 MB on each side."""


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@torch.inference_mode()
def greedy(checkpoint: Path) -> list[int]:
    model, ids = load_reference(checkpoint, torch.float32), list(PROMPT)
    for _ in range(TOKENS):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


class Streams:
    """Requests that follow each other, each to some name that is served now."""

    def __init__(self, engine: AsyncLLM, served: ServedAdapters, expected: dict[str, list[int]]) -> None:
        """expected: tokens by the adapter's folder; "": of the base model."""
        self._engine, self._served, self._expected = engine, served, expected
        self._numbers, self._rng = itertools.count(), random.Random(2)
        self.counts = dict.fromkeys(expected, 0)
        """Right answers of each."""
        self.wrong: list[str] = []
        self.stopped = False

    async def run(self) -> None:
        while not self.stopped:
            name = self._rng.choice(["", *self._served.names()])
            adapter = self._served.open(name) if name else None
            lora = None if adapter is None else adapter.request
            folder = "" if lora is None else lora.lora_path
            params = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)
            try:
                async for out in self._engine.generate(
                    {"prompt_token_ids": PROMPT}, params, f"r{next(self._numbers)}", lora_request=lora
                ):
                    last = out
            finally:
                if adapter is not None:
                    self._served.close(adapter)
            if list(last.outputs[0].token_ids) == self._expected[folder]:
                self.counts[folder] += 1
            else:
                self.wrong.append(f"{name} ({folder}): {last.outputs[0].token_ids} {last.error}")


async def load(served: ServedAdapters, name: str, folder: Path) -> None:
    """Again where the engine was not heard for some seconds, as a client would after a 503: machines may stand still."""
    for _ in range(20):
        try:
            await served.load(name, str(folder), inplace=True, is_3d=False)
            return
        except UnavailableError:
            await asyncio.sleep(0.5)
    await served.load(name, str(folder), inplace=True, is_3d=False)


@pytest.mark.slow  # starts a process, twice
async def test_no_stream_gets_the_tokens_of_another_adapter_whatever_is_reloaded(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """No tokens of another adapter, no slot that stays in use, no memory that grows. Two slots for three names, so that slots
    are written over all the time. A few reloads grow a process less than its allocator does by itself, so memory is compared
    at night only."""
    nightly = request.config.getoption("--nightly")
    base, reloads = make_checkpoint("qwen3", tmp_path / "base"), RELOADS[nightly]
    folders = [write_adapter(base, tmp_path / str(i), i, 4 + i, ALL) for i in range(5)]
    expected = {str(folder): greedy(folder / "merged") for folder in folders} | {"": greedy(base)}
    assert len({tuple(tokens) for tokens in expected.values()}) == len(expected)
    args = EngineArgs(
        model=str(base), device="cpu", dtype="float32", threads=1, max_model_len=64, max_num_seqs=STREAMS,
        kv_cache_memory_bytes=4 << 20, enable_lora=True, max_loras=2, use_tqdm_on_load=False, heartbeat_timeout=60,
    )  # fmt: skip
    engine = await AsyncLLM.start(args)
    served = ServedAdapters(engine, [str(tmp_path)])
    streams, rng = Streams(engine, served, expected), random.Random(1)
    tasks = [asyncio.create_task(streams.run()) for _ in range(STREAMS)]
    marks: list[int] = []
    for change in range(reloads):
        name = f"name{rng.randrange(NAMES)}"
        if name in served.names() and rng.random() < 0.3:
            await served.unload(name, None)
        else:
            await load(served, name, rng.choice(folders))
        if change == reloads // 3:
            os.kill(engine.engine_pid or 0, signal.SIGKILL)
            while engine.restarts == 0 or not engine.ready:
                await asyncio.sleep(0.01)
        if change in (2 * reloads // 3, reloads - 1):
            gc.collect()
            marks.append(resident(os.getpid()) + resident(engine.engine_pid or 0))
        await asyncio.sleep(0)
    while min(streams.counts.values()) == 0 and not streams.wrong:  # every adapter has answered
        for i, folder in enumerate(folders):
            await load(served, f"name{i}", folder)
        await asyncio.sleep(0.05)
    streams.stopped = True
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert streams.wrong == []
    assert not nightly or marks[1] - marks[0] < GROWTH, marks
    for name in served.names():
        await served.unload(name, None)
    assert engine.adapters_in_use() == ([], [])
    assert await engine.list_loras() == set()
    assert not engine._supervisor._adapters
    await engine.shutdown()
