"""A sequence's tokens, and the bits of their log probabilities, do not depend on what ran beside it or how it was cut."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from amounts import some

from thalweg import LLM, SamplingParams

RUNS = {
    "alone": {},
    "crowd": {"crowd": some(11, 31)},
    "chunked": {"crowd": 3, "max_num_batched_tokens": 24, "max_num_seqs": 4},
    "preempted": {"crowd": 7, "num_gpu_blocks_override": 40},
}


def _tokens(device: str, dtype: str, temperature: float, crowd: int = 0, **args: Any) -> tuple[list[int], list[float]]:
    rng = np.random.default_rng(0)
    llm = LLM(device=device, dtype=dtype, max_model_len=256, enable_prefix_caching=False, **args)
    try:
        mine = {"prompt_token_ids": rng.integers(1, 200, 70).tolist()}
        others = [{"prompt_token_ids": rng.integers(1, 200, int(n)).tolist()} for n in rng.integers(1, 120, crowd)]
        params = [
            SamplingParams(temperature=temperature, seed=i, max_tokens=40, ignore_eos=True, logprobs=0)
            for i in range(crowd + 1)
        ]
        out = llm.generate([mine, *others], params, use_tqdm=False)[0].outputs[0]
        assert (llm.stats().preemptions > 0) == ("num_gpu_blocks_override" in args)
        return list(out.token_ids), [p[t].logprob for t, p in zip(out.token_ids, out.logprobs, strict=True)]
    finally:
        llm.shutdown()


QUICK = ("cpu", "bfloat16", 0.9)
"""What `make check` runs: kernels, the dtype that is served, draws from what the bits say."""
EVERY = [
    *itertools.product(["cpu"], ["float32", "bfloat16"], [0.0, 0.9]),
    ("reference", "float32", 0.9),
    ("reference", "bfloat16", 0.0),
]
"""The reference, which is slow, takes each dtype and each temperature once."""


@pytest.mark.parametrize(
    ("device", "dtype", "temperature"),
    [pytest.param(*case, marks=() if case == QUICK else pytest.mark.slow) for case in EVERY],
)
@pytest.mark.slow
def test_tokens_and_logprob_bits_are_the_same_alone_in_a_crowd_chunked_and_preempted(
    device: str, dtype: str, temperature: float
) -> None:
    alone = _tokens(device, dtype, temperature)
    assert len(alone[0]) == 40
    for name, args in list(RUNS.items())[1:]:
        assert _tokens(device, dtype, temperature, **args) == alone, name


@pytest.mark.parametrize("block_size", [4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_small_blocks_keep_a_row_s_bits_without_compiled_kernels(block_size: int) -> None:
    """Torch's fused attention sums an odd end of the keys in another order."""
    args: dict[str, Any] = {"block_size": block_size, "additional_config": {"isa": "none"}}
    alone = _tokens("cpu", "float32", 0.0, **args)
    assert _tokens("cpu", "float32", 0.0, crowd=5, **args) == alone
