"""The TPU platform on JAX's host platform behind everything users touch: the server, AsyncLLM, a killed engine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from thalweg import LLM, AsyncLLM, EngineArgs, SamplingParams
from thalweg.params import RequestOutputKind

pytestmark = pytest.mark.slow
QUESTIONS = ["What is 3 plus 4?", "Spell the word river.", "What is the capital of France?", "Reverse: abc"]
SIZES = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 64}
GREEDY = SamplingParams(temperature=0, max_tokens=24)
SLOW = {"max_tokens": 100, "ignore_eos": True}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Options with one cache of compiled programs, so that each is compiled once for all tests here."""
    return {"jax_platform": "cpu", "compilation_cache": str(tmp_path_factory.mktemp("xla"))}


def _chats(device: str, additional: dict[str, str] | None) -> list[list[int]]:
    llm = LLM(device=device, additional_config=additional, use_tqdm_on_load=False, **SIZES)
    chats = [[{"role": "user", "content": q}] for q in QUESTIONS]
    try:
        return [list(o.outputs[0].token_ids) for o in llm.chat(chats, GREEDY, use_tqdm=False)]
    finally:
        llm.shutdown()


@pytest.fixture(scope="module")
def told() -> list[list[int]]:
    """The definition's answers."""
    return _chats("reference", None)


def test_the_bundled_model_answers_alike_on_all_three(told: list[list[int]], cache: dict[str, str]) -> None:
    assert len({tuple(t) for t in told}) == len(told)
    assert _chats("cpu", None) == told
    assert _chats("tpu", cache) == told


@pytest.fixture(scope="module")
def server(cache: dict[str, str]) -> Iterator[str]:
    words = ["--device", "tpu", "--additional-config", json.dumps(cache), "--port", "0"]
    words += [w for k, v in SIZES.items() for w in ("--" + k.replace("_", "-"), str(v))]
    process = subprocess.Popen(
        [sys.executable, "-m", "thalweg", "serve", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    log: list[str] = []
    try:
        assert process.stdout is not None
        found = None
        while found is None and (line := process.stdout.readline()):
            log.append(line)
            found = re.search(r"serving .* on (http://\S+)", line)
        assert found, "".join(log)
        threading.Thread(target=lambda: log.extend(process.stdout or ()), daemon=True).start()
        yield found[1] + "/v1"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()
            print("".join(log))


@pytest.mark.nightly  # the engine gives the same answers above
async def test_the_server_streams_those_answers_to_several_at_once(
    server: str, told: list[list[int]], cache: dict[str, str]
) -> None:
    client = openai.AsyncOpenAI(base_url=server, api_key="none", max_retries=0, timeout=120)

    async def ask(question: str) -> str:
        stream = await client.chat.completions.create(
            model="thalweg-nano", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=24, stream=True
        )
        parts = [c.choices[0].delta.content or "" async for c in stream if c.choices]
        assert len(parts) > 1
        return "".join(parts)

    tokenizer = LLM(device="null", max_model_len=64).get_tokenizer()
    want = [tokenizer.decode(ids).strip() for ids in told]
    assert [t.strip() for t in await asyncio.gather(*(ask(q) for q in QUESTIONS))] == want
    body = {"model": "thalweg-nano", "prompt": "Once", "seed": 5, "temperature": 1, "max_tokens": 8}
    more = {"extra_body": {"ignore_eos": True}}
    drawn = [(await client.completions.create(**body, **more)).choices[0].text for _ in range(2)]
    assert drawn[0] == drawn[1] != ""


async def _collect(engine: AsyncLLM, prompt: str, name: str, started: asyncio.Event) -> list[int]:
    ids: list[int] = []
    params = SamplingParams(temperature=0, output_kind=RequestOutputKind.DELTA, **SLOW)
    async for out in engine.generate(prompt, params, name):
        ids += out.outputs[0].token_ids
        if len(ids) > 5:
            started.set()
    return ids


@pytest.mark.nightly  # replay has quicker tests, and nothing in it knows a device
async def test_streams_go_on_after_the_engine_is_killed(cache: dict[str, str]) -> None:
    engine = await AsyncLLM.start(EngineArgs(device="tpu", additional_config=cache, use_tqdm_on_load=False, **SIZES))
    try:
        prompts = ["The river bends and the water runs", "One two three four five six"]
        undisturbed = [await _collect(engine, p, f"a{i}", asyncio.Event()) for i, p in enumerate(prompts)]
        events = [asyncio.Event() for _ in prompts]
        tasks = [asyncio.create_task(_collect(engine, p, f"b{i}", events[i])) for i, p in enumerate(prompts)]
        await asyncio.gather(*(e.wait() for e in events))
        os.kill(engine.engine_pid, signal.SIGKILL)
        assert await asyncio.gather(*tasks) == undisturbed
        assert engine.restarts == 1
    finally:
        await engine.shutdown()


def test_the_smallest_programs_are_ready_before_the_first_request(
    cache: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from thalweg.backends.tpu.program import TpuExecutable

    made: list[object] = []
    real = TpuExecutable.program
    monkeypatch.setattr(TpuExecutable, "program", lambda self, cut: made.append(cut) or real(self, cut))
    llm = LLM(device="tpu", additional_config=cache, use_tqdm_on_load=False, **SIZES)
    assert len(made) == 2
    llm.generate("hi", SamplingParams(temperature=0.5, seed=1, max_tokens=4, ignore_eos=True), use_tqdm=False)
    assert len(made) == 2
    llm.shutdown()


def test_compiled_programs_are_kept_between_starts(tmp_path: Path) -> None:
    code = (
        "import json, sys; from thalweg import LLM; a = json.loads(sys.argv[1]);"
        "LLM(device='tpu', additional_config=json.loads(sys.argv[2]), use_tqdm_on_load=False, **a)"
    )
    options = {"jax_platform": "cpu", "compilation_cache": str(tmp_path)}
    kept = []
    for _ in range(2):
        command = [sys.executable, "-c", code, json.dumps(SIZES), json.dumps(options)]
        subprocess.run(command, check=True, capture_output=True)
        kept.append({f.name: f.stat().st_mtime_ns for f in tmp_path.iterdir() if not f.name.endswith("-atime")})
    assert kept[0] == kept[1] != {}
