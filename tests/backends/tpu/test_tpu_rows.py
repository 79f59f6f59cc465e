"""Layers that keep rows for their own ops, and sinks of latent attention, on JAX's host platform: the tokens of `cpu`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from deepseek_v41_definition import VOCAB, write
from test_families import prompts
from zoo import make_checkpoint

from thalweg import LLM, SamplingParams
from thalweg.backends.tpu.ngrams import hash_in_jax
from thalweg.hal import ops

PARAMS = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, detokenize=False)


def generate(path: Any, device: str, vocab: int = 1 << 30, **options: Any) -> list[list[int]]:
    llm = LLM(
        str(path), device=device, dtype="float32", skip_tokenizer_init=True, max_model_len=64, max_num_seqs=4,
        kv_cache_memory_bytes=4_000_000, use_tqdm_on_load=False, **options,
    )  # fmt: skip
    work = [{"prompt_token_ids": [t % vocab for t in p]} for p in prompts()[:3]]
    try:
        return [list(a.outputs[0].token_ids) for a in llm.generate(work, PARAMS, use_tqdm=False)]
    finally:
        llm.shutdown()


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["deepseek-v4", "hy-v4"])
def test_tokens_are_those_of_cpu(name: str, tmp_path: Any) -> None:
    path = make_checkpoint(name, tmp_path)
    assert generate(path, "tpu", additional_config={"jax_platform": "cpu"}) == generate(path, "cpu")


@pytest.mark.nightly
def test_hashes_of_ngrams_and_rounded_keys_are_those_of_cpu(tmp_path: Any) -> None:
    """DeepSeek V4.1. This platform has no integers of 64 bits."""
    write(tmp_path, "whole")
    assert generate(tmp_path, "tpu", VOCAB, additional_config={"jax_platform": "cpu"}) == generate(tmp_path, "cpu", VOCAB)


def test_hashes_in_32_bits_are_those_of_the_op() -> None:
    for sample in ops.hash_ngrams.samples:
        arrays = sample.make(np.random.default_rng(3))
        want = ops.hash_ngrams.reference(*map(torch.tensor, arrays), **sample.static)
        assert np.array_equal(hash_in_jax(*map(jnp.asarray, arrays), **sample.static), want)
