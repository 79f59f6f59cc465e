"""The executor `mp`: a process for each rank, the same steps on all, and one error for whatever ends one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from thalweg import LLM, SamplingParams
from thalweg.errors import ConfigError, EngineDeadError, RankLostError

SIZES: dict[str, Any] = {"device": "null", "max_model_len": 128, "max_num_seqs": 4, "use_tqdm_on_load": False}
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = ["Once upon a time", "2 + 2 =", "a b a b a"]


def tokens(llm: LLM) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def ask_until_it_ends(llm: LLM) -> None:
    for _ in range(1000):
        tokens(llm)


def children(pid: int) -> list[int]:
    """Its ranks."""
    found = [int(c) for f in Path(f"/proc/{pid}/task").glob("*/children") for c in f.read_text().split()]
    return [c for c in found if b"executor.rank" in Path(f"/proc/{c}/cmdline").read_bytes()]


@pytest.fixture
def ranked() -> Any:
    llm = LLM(tensor_parallel_size=3, heartbeat_timeout=3.0, **SIZES)
    yield llm
    llm.llm_engine.shutdown()


@pytest.mark.slow
def test_ranks_run_the_steps_and_operations_of_rank_0(ranked: LLM) -> None:
    llm = LLM(**SIZES)
    assert tokens(ranked) == tokens(llm)
    executor = ranked.llm_engine.executor
    assert executor.call("populate", [0]) == [False, False, False]
    with pytest.raises(ValueError, match="operation: unknown operation 'fly'; supported: populate"):
        executor.call("fly")
    pids = children(os.getpid())
    assert len(pids) == 2
    ranked.llm_engine.shutdown()
    assert children(os.getpid()) == []
    assert not list(Path("/dev/shm").glob(f"thalweg-ranks-{os.getpid()}-*"))


@pytest.mark.slow
def test_results_are_those_of_the_last_stage() -> None:
    """Of platform null, which computes every token on each rank."""
    llm = LLM(pipeline_parallel_size=2, **SIZES)
    llm.llm_engine.executor.worker.launch = lambda batch: None  # a result that nobody may read
    assert tokens(llm) == tokens(LLM(**SIZES))
    with pytest.raises(ConfigError, match="distributed_executor_backend: tensor_parallel_size 1 and pipeline_parallel_size 2"):
        LLM(pipeline_parallel_size=2, distributed_executor_backend="uni", **SIZES)
    llm.llm_engine.shutdown()


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.slow), signal.SIGSTOP])
@pytest.mark.slow
def test_the_end_of_a_rank_is_that_of_the_engine_and_has_its_name(ranked: LLM, number: int) -> None:
    tokens(ranked)
    pids = sorted(children(os.getpid()))
    os.kill(pids[0], number)
    why = {
        signal.SIGKILL: "rank 1 of 3 ended: SIGKILL",
        signal.SIGSEGV: "rank 1 of 3 ended: SIGSEGV",
        signal.SIGSTOP: r"rank 1 of 3 has given no sign of life for \d+\.\d s \(heartbeat_timeout\)",
    }[signal.Signals(number)]
    blameless = number != signal.SIGSEGV
    with pytest.raises(RankLostError if blameless else EngineDeadError, match=why) as e:
        ask_until_it_ends(ranked)
    assert isinstance(e.value, RankLostError) == blameless
    ranked.llm_engine.executor.close()
    assert not any(Path(f"/proc/{p}").exists() for p in pids)


@pytest.mark.slow
def test_ranks_end_with_rank_0_however_that_ends() -> None:
    code = f"""
        import os, signal, sys, threading
        sys.path.append({str(Path(__file__).parent)!r})
        from test_executor_mp import *
        made = []
        def make():
            made.append(LLM(tensor_parallel_size=2, **SIZES))
        if sys.argv[1] == "thread":  # a rank that it started outlives the thread
            t = threading.Thread(target=make); t.start(); t.join()
        else:
            make()
        assert len(tokens(made[0])[0]) == 12
        print(*children(os.getpid()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    for where in ("main", "thread"):
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), where], capture_output=True, text=True, timeout=240)
        assert done.returncode == -signal.SIGKILL, done.stderr
        for _ in range(3000):
            if not Path(f"/proc/{done.stdout.strip()}").exists():
                break
            subprocess.run(["sleep", "0.01"], check=True)
        assert not Path(f"/proc/{done.stdout.strip()}").exists()


@pytest.mark.slow
def test_what_a_rank_cannot_build_is_said_by_it() -> None:
    with pytest.raises(
        ConfigError, match="distributed_executor_backend: tensor_parallel_size 2 on platform 'null' needs 2 proc"
    ):
        LLM(tensor_parallel_size=2, distributed_executor_backend="uni", **SIZES)
    with pytest.raises(ConfigError, match=r"^max_model_len"):  # of rank 0 itself, without a rank
        LLM(tensor_parallel_size=2, **{**SIZES, "max_model_len": 10**6})


def test_a_rank_that_has_less_memory_sets_the_size_of_all_caches() -> None:
    from thalweg.engine.worker.build import BuildGroup, build

    class Less(BuildGroup):
        def least(self, room: int) -> int:
            return min(room, 20 * 49152)

    args = LLM(**SIZES).llm_engine.frontend.args
    all_of_it, less = build(args), build(args, group=Less())
    assert (less.config.cache.blocks, all_of_it.config.cache.blocks) == ((20,), (33,))
