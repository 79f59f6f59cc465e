"""Drafters with layers on the TPU platform, on JAX's host platform: plans made in the step, and the drafts of other devices."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

from thalweg import LLM, SamplingParams
from thalweg.backends.tpu.attention import QUERIES, XlaAttention, _plan_tiles
from thalweg.engine.control.speculation.gain import Gain
from thalweg.hal.attention import AttnSpec
from thalweg.hal.step import SCRATCH, StepBatch
from thalweg.hal.testing import sequences as seq

HOST = {"jax_platform": "cpu", "compilation_cache": "", "precompile": "none"}
SPEC = AttnSpec(4, 2, 16, 0.25, "float32")


def batch_of(query: list[int], padding: int) -> StepBatch:
    """Sequences with so many tokens, and one of padding."""
    count = [*query, padding]
    batch = seq.batch_of(np.ones((len(count), 2), np.int32), [0] * len(count), count)
    return replace(batch, slots=np.array([*range(1, len(count)), SCRATCH], np.int32))


@pytest.mark.parametrize(("query", "padding"), [([1, 40, 16, 17], 6), ([33], 0), ([2, 2, 2], 2), ([1, 1, 1], 1)])
@pytest.mark.sampled(1)
def test_a_plan_made_in_the_step_is_that_of_the_host(query: list[int], padding: int) -> None:
    batch = batch_of(query, padding)
    want = XlaAttention().metadata(batch, 0, SPEC, None)
    queries = want["place_size"].size
    assert queries == (QUERIES if max(query) > 1 else 1)
    plan = jax.jit(partial(_plan_tiles, queries=queries))
    got = plan(batch.token_seq, batch.query, batch.last_row, batch.slots)
    assert got.keys() == want.keys()
    for name, values in want.items():
        np.testing.assert_array_equal(np.asarray(got[name]), values, name)


def generate(model: str, drafter: Any, device: str) -> tuple[list[Any], Any]:
    more = {"additional_config": HOST} if device == "tpu" else {}
    llm = LLM(
        model, device=device, speculative_config=drafter, dtype="float32", max_model_len=96, max_num_seqs=2, seed=0,
        max_num_batched_tokens=32, block_size=8, use_tqdm_on_load=False, **more,
    )  # fmt: skip
    prompts = [{"prompt_token_ids": ids} for ids in ([5, 6, 7, 8, 5, 6, 7, 8, 5], [11, 3, 99])]
    params = [
        SamplingParams(max_tokens=12, ignore_eos=True, **p) for p in ({"temperature": 0}, {"temperature": 0.8, "seed": 3})
    ]
    out = llm.generate(prompts, params, use_tqdm=False)
    stats = llm.stats()
    llm.shutdown()
    return [o.outputs[0].token_ids for o in out], stats


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["mtp", "draft_model", "authors", "p-eagle", "eagle-1"])
def test_drafts_and_text_are_those_of_the_host_s_platform(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some drafts are right, and as many as on `cpu`."""
    from test_eagle import Target, make

    monkeypatch.setattr(Gain, "allows", lambda self, streams: True)  # whatever this machine's clock says
    torch.manual_seed(1)
    model = "thalweg-nano"
    drafter = {"method": name, "num_speculative_tokens": 3}
    if name == "draft_model":
        drafter["model"] = "thalweg-nano"
    elif name != "mtp":
        (tmp_path / "target").mkdir()
        made = Target()
        made.save(tmp_path / "target")
        model, drafter = str(tmp_path / "target"), make((made, tmp_path / "target"), name)[1]
    want, counted = generate(model, drafter, "cpu")
    got, stats = generate(model, drafter, "tpu")
    assert got == want
    assert stats.accepted_tokens > 0
    assert (stats.draft_tokens, stats.accepted_tokens) == (counted.draft_tokens, counted.accepted_tokens)
