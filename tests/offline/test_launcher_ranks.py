"""Programs that torchrun starts, one for each rank: the text of one rank on all of them, and one error where they differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from loopback import free_port

from thalweg import LLM, SamplingParams
from thalweg.errors import ConfigError

SIZES: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 4, "dtype": "float32", "use_tqdm_on_load": False}
PROMPTS = ["Once upon a time", "2 + 2 =", "one two three " * 10]
PROGRAM = f"""
import faulthandler, json, os, sys
faulthandler.dump_traceback_later(60)  # seconds: a rank that hangs says where
from thalweg import LLM, SamplingParams
device, out, differ = sys.argv[1:]
rank = int(os.environ["RANK"])
llm = LLM(device=device, tensor_parallel_size=2, distributed_executor_backend="external_launcher", **{SIZES!r})
prompts = {PROMPTS!r}
greedy = [SamplingParams(temperature=0, max_tokens=24 + rank * int(differ), ignore_eos=True)] * len(prompts)
drawn = [SamplingParams(temperature=1, max_tokens=24, ignore_eos=True)] * len(prompts)  # by seeds that each rank would draw
texts = [[list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)] for params in (greedy, drawn)]
assert llm.reset_prefix_cache()
open(f"{{out}}/{{rank}}", "w").write(json.dumps(texts))
"""


def launch(tmp_path: Path, device: str, machines: int, differ: int = 0) -> list[subprocess.CompletedProcess[str]]:
    """Two ranks, by a launcher on each machine. A hang is tried once more, and where each rank was is shown as a warning: one
    was met, of unknown cause."""
    try:
        return _launch(tmp_path, device, machines, differ)
    except subprocess.TimeoutExpired as e:
        warnings.warn(f"a launch hung: {(e.stderr or b'').decode()}", stacklevel=1)
        return _launch(tmp_path, device, machines, differ)


def _launch(tmp_path: Path, device: str, machines: int, differ: int) -> list[subprocess.CompletedProcess[str]]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    port = free_port()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(2 // machines)]
    command += ["--nnodes", str(machines), "--master-addr", "127.0.0.1", "--master-port", str(port)]
    words = [str(program), device, str(tmp_path), str(differ)]
    running = [
        subprocess.Popen([*command, "--node-rank", str(n), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for n in range(machines)
    ]
    try:
        found = [each.communicate(timeout=120) for each in running]
    except subprocess.TimeoutExpired as e:
        for each in running:
            each.terminate()  # torchrun then ends its ranks
        e.stderr = "\n".join(each.communicate(timeout=60)[1][-6000:] for each in running).encode()
        raise
    finally:
        for each in running:
            each.kill()
    return [subprocess.CompletedProcess(command, p.returncode, *s) for p, s in zip(running, found, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2])  # over shared memory, and over TCP
def test_every_rank_has_the_text_of_one(tmp_path: Path, machines: int) -> None:
    for done in launch(tmp_path, "cpu", machines):
        assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / str(rank)).read_text()) for rank in range(2))
    assert first == second
    llm = LLM(device="cpu", **SIZES)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    assert first[0] == [list(o.outputs[0].token_ids) for o in llm.generate(PROMPTS, params, use_tqdm=False)]
    assert not list(Path("/dev/shm").glob("thalweg-ranks-*/exchange"))


@pytest.mark.slow
def test_programs_that_differ_end_with_an_error_that_says_so(tmp_path: Path) -> None:
    (done,) = launch(tmp_path, "null", 1, differ=1)
    assert done.returncode != 0
    assert "rank 1 of 2 asked for other requests than rank 0" in done.stderr


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "WORLD_SIZE is not set: external_launcher needs a program started by torchrun"),
        ({"RANK": "2"}, "RANK: '2' must be a number from 0 to 1"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT: 'x' must be a number"),
        ({"WORLD_SIZE": "4"}, r"the launcher started 4 processes \(WORLD_SIZE\), and tensor_parallel_size 2 .* needs 2"),
    ],
)
def test_what_the_launcher_set_is_checked_by_name(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], why: str) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    values = dict(zip(names, ("0", "0", "2", "2", "127.0.0.1", "29500"), strict=True)) | given if given else {}
    for name in names:
        monkeypatch.delitem(os.environ, name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=why):
        LLM(device="null", tensor_parallel_size=2, distributed_executor_backend="external_launcher", **SIZES)
