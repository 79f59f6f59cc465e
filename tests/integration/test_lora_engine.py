"""Adapters of an engine process: each request has its own, and a new process is given them before the requests."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_files import ALL, ATTENTION, write_adapter
from zoo import load_reference, make_checkpoint

from thalweg import AsyncLLM, EngineArgs, LoRARequest, RequestOutput, SamplingParams
from thalweg.errors import RequestError, UnsupportedModelError

pytestmark = pytest.mark.slow  # each starts processes
LONG = 200
PROMPT = list(b"the same prompt for all")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("base"))


@pytest.fixture
def loras(base: Path, tmp_path: Path) -> dict[str, LoRARequest]:
    made = {"a": write_adapter(base, tmp_path / "a", 1, 3, ALL), "b": write_adapter(base, tmp_path / "b", 2, 8, ATTENTION)}
    return {name: LoRARequest(name, i, str(path)) for i, (name, path) in enumerate(made.items(), 1)}


@pytest.fixture
async def engine(base: Path, request: pytest.FixtureRequest) -> AsyncIterator[AsyncLLM]:
    """Over as many ranks as the test says."""
    sizes: dict[str, Any] = {
        "tensor_parallel_size": getattr(request, "param", 1),
        "max_model_len": 256,
        "max_num_seqs": 8,
        "kv_cache_memory_bytes": 8 << 20,
        "dtype": "float32",
    }
    args = EngineArgs(model=str(base), device="cpu", threads=1, use_tqdm_on_load=False, enable_lora=True, **sizes)
    made = await AsyncLLM.start(args)
    yield made
    await made.shutdown()


async def ask(engine: AsyncLLM, lora: LoRARequest | None, name: str, tokens: int = 8) -> RequestOutput:
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    async for out in engine.generate({"prompt_token_ids": PROMPT}, params, name, lora_request=lora):
        last = out
    return last


def tokens_of(output: RequestOutput) -> list[int]:
    return list(output.outputs[0].token_ids)


@torch.inference_mode()
def check(output: RequestOutput, checkpoint: Path) -> None:
    tokens = tokens_of(output)
    logits = load_reference(checkpoint, torch.float32)(torch.tensor([[*PROMPT, *tokens]])).logits[0]
    assert tokens == logits[len(PROMPT) - 1 : -1].argmax(-1).tolist()


def find_victim(pid: int) -> int:
    """The engine's second rank, or the engine."""
    children = (c for f in Path(f"/proc/{pid}/task").glob("*/children") for c in f.read_text().split())
    return next((int(c) for c in children if b"executor.rank" in Path(f"/proc/{c}/cmdline").read_bytes()), pid)


async def kill_amid(engine: AsyncLLM, tasks: list[asyncio.Task[RequestOutput]]) -> None:
    """Kill the process, or a rank, while some of these run, and wait for the next one."""
    while (stats := engine.stats()) is None or not stats.running:
        await asyncio.sleep(0.005)
    restarts = engine.restarts
    os.kill(find_victim(engine.engine_pid or 0), signal.SIGKILL)
    assert not all(t.done() for t in tasks)
    while engine.restarts == restarts or not engine.ready:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("engine", [1, pytest.param(2, marks=pytest.mark.nightly)], indirect=True)
async def test_requests_have_their_adapters_and_keep_them_when_the_process_is_killed(
    engine: AsyncLLM, base: Path, loras: dict[str, LoRARequest]
) -> None:
    """One slot, so that the process that replaces it writes each again. Ranks that live have their parts already."""
    kinds = [loras["a"], None, loras["b"]]
    first = await asyncio.gather(*(ask(engine, lora, f"short{i}") for i, lora in enumerate(kinds)))
    for output, lora in zip(first, kinds, strict=True):
        check(output, base if lora is None else Path(lora.lora_path) / "merged")
        assert output.lora_request == lora
    calm = await asyncio.gather(*(ask(engine, lora, f"calm{i}", LONG) for i, lora in enumerate(kinds)))
    assert len({tuple(tokens_of(o)) for o in calm}) == 3
    tasks = [asyncio.create_task(ask(engine, lora, f"killed{i}", LONG)) for i, lora in enumerate(kinds)]
    await kill_amid(engine, tasks)
    assert [tokens_of(o) for o in await asyncio.gather(*tasks)] == [tokens_of(o) for o in calm]


async def test_requests_of_an_adapter_that_changed_end_with_an_error_when_the_process_is_killed(
    engine: AsyncLLM, base: Path, loras: dict[str, LoRARequest]
) -> None:
    a, b = loras["a"], loras["b"]
    await ask(engine, a, "first")
    tasks = [asyncio.create_task(ask(engine, lora, f"r{i}", LONG)) for i, lora in enumerate((a, None))]
    shutil.copytree(b.lora_path, a.lora_path, dirs_exist_ok=True)
    await kill_amid(engine, tasks)
    lost, kept = await asyncio.gather(*tasks)
    assert lost.outputs[0].finish_reason == "error"
    assert "has changed since it was first read" in str(lost.error)
    assert kept.outputs[0].finish_reason == "length"
    anew = LoRARequest("a", 1, a.lora_path, load_inplace=True)
    check(await ask(engine, anew, "anew"), Path(b.lora_path) / "merged")


async def test_what_cannot_be_loaded_is_refused_and_what_is_idle_is_forgotten(
    engine: AsyncLLM, base: Path, loras: dict[str, LoRARequest], tmp_path: Path
) -> None:
    wide = write_adapter(base, tmp_path / "wide", 3, 17, ATTENTION)
    with pytest.raises(RequestError, match=r"wide: the adapter has rank 17 .*--max-lora-rank"):
        await ask(engine, LoRARequest("wide", 9, str(wide)), "wide")
    (wide / "adapter_config.json").write_text('{"peft_type": "LORA", "use_qalora": true, "r": 17, "lora_alpha": 1}')
    with pytest.raises(UnsupportedModelError, match="use_qalora"):
        await engine.add_lora(LoRARequest("wide", 9, str(wide)))
    for name in ("a", "b", "a"):
        check(await ask(engine, loras[name], name), Path(loras[name].lora_path) / "merged")
    assert await engine.list_loras() == {1, 2}
    assert len(engine._supervisor._adapters) == 1, "more idle adapters than max_cpu_loras"
    assert await engine.remove_lora(1)
    assert not await engine.remove_lora(1)
    assert await engine.list_loras() == {2}
    assert await engine.pin_lora(2)
    check(await ask(engine, loras["b"], "pinned"), Path(loras["b"].lora_path) / "merged")
    check(await ask(engine, loras["a"], "passing"), Path(loras["a"].lora_path) / "merged")
    kept = [Path(path).name for path in engine._supervisor._adapters.values()]
    assert kept == ["b"], "a pinned adapter stays, and others leave as soon as they are idle"
    with pytest.raises(RequestError, match="no adapter has the number 7"):
        await engine.pin_lora(7)
