"""Models divided among ranks give the text of one rank: a kind of layer each. `python ci/tp_zoo.py` runs every family, over
processes."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
from rig import Rig
from test_families import prompts
from thread_ranks import Ring, run_ranks
from zoo import make_checkpoint

from thalweg.checkpoint.safetensors import Checkpoint
from thalweg.hal.discovery import load
from thalweg.hal.platform import Place

KINDS = {
    "llama-biased": 2,
    "llama-tied": 4,  # a key-value head that every rank has
    "bloom": 2,  # slopes of heads
    "olmo2": 4,  # norms over all heads, and key heads that two ranks have
    "stablelm-12b": 4,  # norms with a tensor for each head
    "persimmon": 2,  # one norm of all heads, with a bias
    "gemma3n": 2,  # gates cut by all of their values
    "minimax": 2,  # a norm over all heads of linear attention
    "bamba": 2,  # a group of Mamba-2 that every rank has
    "qwen3-moe": 2,
    "deepseek-v3": 4,
    "deepseek-v4": 2,  # groups of heads with a product each
    "qwen3-next": 2,
    "qwen4-exp": 2,
    "hy-v4": 2,  # sinks of latent attention
    "inkling": 2,  # convolutions over keys and values
    "axk2": 2,  # gates of values, with q
    "zamba2": 2,  # additions of low rank
}


PLACED = {
    "gpt-oss": 2,  # biases of experts
    "mixtral": 4,  # five experts: a rank with two
    "longcat-flash": 2,  # choices without an expert
    "inkling": 2,  # experts that every token goes to, in separate tensors
    "llama4": 2,  # weights that multiply inputs
    "nemotron-h": 2,  # experts without gates, behind a projection
}
"""Mixtures with experts whole on ranks."""
CASES = [*((name, ranks, False) for name, ranks in KINDS.items()), *((name, ranks, True) for name, ranks in PLACED.items())]


@pytest.mark.parametrize(("name", "ranks", "placed"), CASES)
@pytest.mark.sampled(2)
def test_ranks_that_share_a_model_give_the_text_of_one(name, ranks, placed, tmp_path):
    path = make_checkpoint(name, tmp_path, tokenizer=False)
    ring = Ring(ranks)

    def generate(rank: int, comm: Ring | None = None):
        device = load("reference").open(Place())
        if comm is not None:
            device.comm = comm
        rig = Rig(path, device=device, rank=rank, expert_parallel=placed and comm is not None)
        return rig.generate(prompts(), 6, chunk=8, budget=24)

    one = generate(0)
    for seqs in run_ranks(ring, lambda rank: generate(rank, ring)):
        for s, t in zip(seqs, one, strict=True):
            assert s.tokens == t.tokens
            np.testing.assert_allclose(s.logprobs, t.logprobs, atol=1e-4)
            np.testing.assert_allclose(s.scores, t.scores, atol=1e-4)


EXACT = {
    "llama-biased": 2,  # a bias after a sum
    "mixtral": 4,  # five experts: results of choices
    "deepseek-v3": 4,
    "deepseek-v4": 2,
    "gpt-oss": 2,  # biases of experts
    "llama4": 2,  # weights that multiply inputs
    "mamba": 4,  # a product that is whole on every rank
    "bamba": 2,
    "gemma3n": 2,
    "longcat-flash": 2,
    "olmo2": 4,
    "qwen3-next": 2,
    "nemotron-h": 2,
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.sampled(2, 3)
def test_ranks_that_divide_no_sum_have_the_bits_of_one(name, tmp_path):
    path = make_checkpoint(name, tmp_path, tokenizer=False)
    ring = Ring(EXACT[name])

    def generate(rank: int, comm: Ring | None = None):
        device = load("reference").open(Place())
        if comm is not None:
            device.comm = comm
        rig = Rig(path, device=device, rank=rank, dtype="bfloat16", tp_invariant=True)
        return [(s.tokens, s.logprobs, s.scores) for s in rig.generate(prompts(), 6, chunk=8, budget=24)]

    one = generate(0)
    assert all(each == one for each in run_ranks(ring, lambda rank: generate(rank, ring)))


def test_a_rank_reads_only_the_experts_it_holds(tmp_path, monkeypatch):
    path = make_checkpoint("mixtral", tmp_path, tokenizer=False)  # of five experts
    read = Checkpoint.read
    seen: list[set[int]] = [set(), set()]

    def note(self, name, *more):
        if (found := re.search(r"experts\.(\d+)\.", name)) is not None:
            seen[int(threading.current_thread().name)].add(int(found[1]))
        return read(self, name, *more)

    monkeypatch.setattr(Checkpoint, "read", note)
    ring = Ring(2)

    def build(rank: int):
        device = load("reference").open(Place())
        device.comm = ring
        return Rig(path, device=device, rank=rank, expert_parallel=True)

    run_ranks(ring, build)
    assert seen == [{0, 1, 2}, {2, 3, 4}]
