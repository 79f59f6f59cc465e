"""The example of an executor outside the repository: installed as a package, found by its name, equal to the worker here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "executor"
SCRIPT = """
import asyncio, json, os, signal
from pathlib import Path
from thalweg import LLM, AsyncLLM, EngineArgs, SamplingParams
from thalweg.errors import ConfigError, UnavailableError

SIZES = dict(max_model_len=128, max_num_seqs=4)
PROMPTS = ["Once upon a time", "2 + 2 =", "a b a b a", "The capital of France", "x", "one two three"]
MANY = [
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=1.0, top_p=0.9, seed=5, max_tokens=20, ignore_eos=True, logprobs=3, presence_penalty=0.5),
    SamplingParams(temperature=0, max_tokens=12, prompt_logprobs=1, bad_words=["the"]),
    SamplingParams(temperature=0, max_tokens=16, structured_outputs={"choice": ["red", "green"]}),
]

def answers(device, executor):
    llm = LLM(device=device, distributed_executor_backend=executor, use_tqdm_on_load=False, **SIZES)
    params = [MANY[i % (4 if device != "null" else 2)] for i in range(len(PROMPTS))]
    outs = llm.generate(PROMPTS, params, use_tqdm=False)
    rows = [[list(o.outputs[0].token_ids), repr(o.outputs[0].logprobs), repr(o.prompt_logprobs)] for o in outs]
    if executor == "child":
        try:
            llm.device
        except UnavailableError:
            rows.append("no device here")
    plan = llm.kernel_plan
    llm.llm_engine.shutdown()
    return rows, plan

said = {f"{d} {e}": answers(d, e) for d in ("null", "reference", "cpu") for e in ("uni", "child")}

async def killed(executor):
    engine = AsyncLLM.from_engine_args(EngineArgs(device="cpu", distributed_executor_backend=executor, **SIZES))
    tokens, restarts, killed = [], 0, False
    async for out in engine.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True), "r"):
        tokens = list(out.outputs[0].token_ids)
        if executor == "child" and len(tokens) > 5 and not killed:
            killed = True
            pid = engine._supervisor.pid
            children = Path(f"/proc/{pid}/task").glob("*/children")
            workers = [int(c) for f in children for c in f.read_text().split()]
            workers = [c for c in workers if b"thalweg_executor.child" in Path(f"/proc/{c}/cmdline").read_bytes()]
            os.kill(workers[0], signal.SIGKILL)
    restarts = engine._supervisor.restarts
    await engine.shutdown()
    return tokens, restarts

said["killed"] = [asyncio.run(killed(e)) for e in ("uni", "child")]
try:
    LLM(device="cpu", distributed_executor_backend="child", max_model_len=10**6)
except ConfigError as e:
    said["refused"] = str(e)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Any:
    sys.path.append(str(Path(__file__).parents[1] / "models"))
    from installed import installed

    environment = installed(EXAMPLE, tmp_path_factory.mktemp("executor"))
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.nightly  # test_steps_on_the_wire finds most of what breaks it
def test_texts_and_logprobs_are_those_of_the_worker_here(said: Any) -> None:
    for device in ("null", "reference", "cpu"):
        here, there = said[f"{device} uni"], said[f"{device} child"]
        assert there[0] == [*here[0], "no device here"], device
        assert there[1] == here[1], device


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_the_text_goes_on(said: Any) -> None:
    (text, restarts), (again, replaced) = said["killed"]
    assert (again, restarts) == (text, 0)
    assert replaced == 1


@pytest.mark.slow
def test_what_the_child_refuses_is_said_in_its_words(said: Any) -> None:
    assert "max_model_len 1000000 exceeds" in said["refused"]


def test_it_is_small_enough_to_read() -> None:
    assert sum(len(p.read_text().splitlines()) for p in EXAMPLE.rglob("thalweg_executor/*.py")) < 200
