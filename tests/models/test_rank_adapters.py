"""Adapters of a model that ranks divide: each rank has its part of A and B, and the text is that of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rig import Rig
from test_families import prompts
from test_peft_adapters import CASES, EVERY, write
from thread_ranks import Ring, run_ranks
from zoo import make_checkpoint

from thalweg import LLM
from thalweg.engine.worker.adapters import AdapterStore
from thalweg.errors import CheckpointError
from thalweg.hal.discovery import load
from thalweg.hal.platform import Place
from thalweg.models.adapters import AdapterPlan

RANKED: dict[str, tuple[str, int, dict[str, Any]]] = {
    "every layer, a shared key head": ("llama-tied", 4, {"target_modules": EVERY}),
    "latents": ("deepseek-v3", 2, {"target_modules": ["q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "o_proj"]}),
    "a recurrent state": ("bamba", 2, {"target_modules": ["in_proj", "q_proj", "up_proj"]}),
    **{name: (model, 2, config) for name, (model, config) in CASES.items()},
}
"""Name -> (model, ranks, arguments of LoraConfig)."""


def generate(path: Path, adapter: Path, rank: int, comm: Ring | None = None, tp_invariant: bool = False) -> Any:
    """Of four sequences the second has no adapter."""
    device = load("reference").open(Place())
    if comm is not None:
        device.comm = comm
    room = AdapterPlan(2, 8, MODULES if "moe" in path.name else None)
    rig = Rig(path, device=device, rank=rank, adapters=room, tp_invariant=tp_invariant)
    store = AdapterStore(rig.model, device, rig.box, path, "auto", rank)
    digest = store.read(str(adapter))
    store.keep(digest)
    rig.adapter_of, rig.adapter_level = {1: 2, 3: 2, 4: 2}, store.write(2, digest)
    return rig.generate(prompts(), 6, chunk=8, budget=24)


MODULES = ("q_proj", "v_proj", "experts")


@pytest.mark.parametrize("name", RANKED)
@pytest.mark.sampled(1, 6)
def test_ranks_give_the_text_of_one_with_an_adapter(name: str, tmp_path: Path) -> None:
    model, ranks, config = RANKED[name]
    path = make_checkpoint(model, tmp_path / model, tokenizer=False)
    write(path, tmp_path / "adapter", **config)
    one = generate(path, tmp_path / "adapter", 0)
    ring = Ring(ranks)
    for seqs in run_ranks(ring, lambda rank: generate(path, tmp_path / "adapter", rank, ring)):
        for s, t in zip(seqs, one, strict=True):
            assert s.tokens == t.tokens
            np.testing.assert_allclose(s.logprobs, t.logprobs, atol=1e-4)
            np.testing.assert_allclose(s.scores, t.scores, atol=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["every layer, a shared key head", "a recurrent state", "dora with biases", "lora_bias"])
def test_ranks_that_divide_no_sum_have_the_bits_of_one_with_an_adapter(name: str, tmp_path: Path) -> None:
    model, ranks, config = RANKED[name]
    path, adapter = make_checkpoint(model, tmp_path / model, tokenizer=False), tmp_path / "adapter"
    write(path, adapter, **config)
    one = generate(path, adapter, 0, tp_invariant=True)
    ring = Ring(ranks)
    for seqs in run_ranks(ring, lambda rank: generate(path, adapter, rank, ring, tp_invariant=True)):
        assert [(s.tokens, s.logprobs, s.scores) for s in seqs] == [(s.tokens, s.logprobs, s.scores) for s in one]


def test_an_adapter_is_loaded_by_every_rank_or_by_none() -> None:
    llm = LLM(device="null", max_model_len=64, use_tqdm_on_load=False)
    core, calls = llm.llm_engine.core, []
    answers: Any = [[b"a", b"a"], [b"a", b"b"], CheckpointError("rank 1 of 2: no such file")]

    def call(operation: str, *args: Any) -> list[Any]:
        calls.append((operation, args[0]))
        if operation != "read_adapter":
            return []
        if isinstance(answers[0], Exception):
            raise answers.pop(0)
        return list(answers.pop(0))

    core._executor.call = call  # type: ignore[method-assign]
    assert core.read_adapter("path") == b"a"
    with pytest.raises(CheckpointError, match="path: ranks read different adapters there"):
        core.read_adapter("path")
    with pytest.raises(CheckpointError, match="rank 1 of 2: no such file"):
        core.read_adapter("path")
    assert [args for operation, args in calls if operation == "keep_adapter"] == [b"a", b"", b""]
