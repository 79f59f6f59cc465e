"""gpt-oss's biases of experts: which of them a kernel adds, and which the layer adds after it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rig import Rig
from transformers import GptOssConfig
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from zoo import make_checkpoint

from thalweg.checkpoint.config import read_config
from thalweg.hal import ops
from thalweg.hal.comm import Communicator, Mesh, Solo
from thalweg.hal.discovery import load
from thalweg.hal.op import OF_BODIES, Binder, Kernel
from thalweg.hal.ops.activation import SWIGLU_OAI
from thalweg.hal.platform import Place
from thalweg.models.build import build

SIX, SEVEN = "adds no biases of down", "adds both"
"""Kernels by how many arrays they are given."""


def _refusal(spec: Mapping[str, Any]) -> str | None:
    return "adds no biases of down projections" if spec.get("down_biased") else None


def _kernel(name: str, calls: list[int]) -> Kernel:
    def run(*arrays: Any, **static: Any) -> torch.Tensor:
        calls.append(len(arrays))
        out: torch.Tensor = ops.experts.reference(*arrays, **static)
        return out

    more = {"supports": _refusal} if name == SIX else {}
    return Kernel("experts", name, run, pack=OF_BODIES, batch_invariant=True, **more)


class Two(Communicator):
    """Two ranks, of which nothing is asked."""

    size = 2

    def all_reduce(self, x: Any) -> Any:
        raise NotImplementedError

    def all_gather(self, x: Any, dim: int = -1) -> Any:
        raise NotImplementedError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = make_checkpoint("gpt-oss", tmp_path_factory.mktemp("made"), tokenizer=False)
    return made


@pytest.mark.parametrize(("name", "arrays"), [(SIX, 6), (SEVEN, 7)])
def test_the_bias_of_down_is_added_once_by_the_kernel_or_by_the_layer(
    path: Path, name: str, arrays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [np.random.default_rng(3).integers(0, 288, n).tolist() for n in (9, 20)]
    want = Rig(path).generate(prompts, 6, 8, 16)
    calls: list[int] = []
    monkeypatch.setattr("rig.Binder", lambda kernels, **more: Binder([_kernel(name, calls)], **more))
    got = Rig(path).generate(prompts, 6, 8, 16)
    assert set(calls) == {arrays}
    assert [s.tokens for s in got] == [s.tokens for s in want]
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("comm", "within"), [(Solo(), True), (Two(), False)])
def test_ranks_that_sum_do_not_each_add_the_bias_of_down(path: Path, comm: Communicator, within: bool) -> None:
    device, binder = load("reference").open(Place()), Binder([_kernel(SEVEN, [])])
    build(
        read_config(path), binder=binder, attention=device.attention, mesh=Mesh(comm), dtype="float32", max_len=64,
        block_tokens=4,
    )  # fmt: skip
    (choice,) = [c for c in binder.bindings if c.op == "experts"]
    assert choice.spec.get("down_biased", False) is within
    assert choice.spec["biased"] is True


def test_experts_with_both_biases_are_those_of_gpt_oss() -> None:
    hidden, ffn, count, k = 32, 24, 6, 3
    config = GptOssConfig(hidden_size=hidden, intermediate_size=ffn, num_local_experts=count, num_experts_per_tok=k)
    config._experts_implementation = "eager"
    made = gpt_oss.GptOssExperts(config)
    torch.manual_seed(0)
    for p in made.parameters():
        torch.nn.init.normal_(p)
    x = torch.randn(11, hidden)
    ids = torch.stack([torch.randperm(count)[:k] for _ in x])
    shares = torch.rand(len(x), k)
    want = made(x, ids, shares)
    first, bias = made.gate_up_proj.transpose(1, 2), made.gate_up_proj_bias
    apart = [torch.cat([a[:, ::2], a[:, 1::2]], 1).flatten(0, 1) for a in (first, bias)]  # rows of gate and up alternate
    down = made.down_proj.transpose(1, 2).flatten(0, 1)
    got = ops.experts(
        x, ids.to(torch.int32), shares, apart[0], down, apart[1], made.down_proj_bias.flatten(), experts=count,
        act=SWIGLU_OAI,
    )  # fmt: skip
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
