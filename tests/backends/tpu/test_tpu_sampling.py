"""Truncation by bisection and logprobs one by one: exactly what a sort would have given, ties and all."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

from thalweg.backends.tpu.sampling import KERNELS, MOST, _logprobs, _truncate
from thalweg.hal import ops
from thalweg.hal.op import Binder

ROWS = 6


def _logits(rng: np.random.Generator, vocab: int, seed: int) -> np.ndarray:
    """Spread or flat, with ties in every other case, some tokens banned."""
    logits = rng.normal(size=(ROWS, vocab)) * rng.choice([0.1, 1, 5, 30])
    logits = np.round(logits * 2) / 2 if seed % 2 else logits
    if seed % 5 == 0:
        logits[:, rng.integers(0, vocab)] = -np.inf
    return logits.astype(np.float32)


@pytest.mark.parametrize("vocab", [7, 300])
def test_truncation_keeps_what_a_sort_keeps(vocab: int) -> None:
    run = jax.jit(_truncate)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        args = (
            _logits(rng, vocab, seed),
            rng.integers(0, vocab + 3, ROWS).astype(np.int32),
            rng.choice([1, 0.999, 0.9, 0.5, 0.1, 0, 1e-6], ROWS).astype(np.float32),
            rng.choice([0, 0, 0.05, 0.5, 1], ROWS).astype(np.float32),
        )
        want = ops.truncate(*map(torch.from_numpy, args)).numpy()
        np.testing.assert_array_equal(np.asarray(run(*args)), want, err_msg=f"seed {seed}: k, p, min_p = {args[1:]}")


@pytest.mark.parametrize("k", [0, 1, 7])
def test_logprobs_are_those_of_a_sort(k: int) -> None:
    run = jax.jit(_logprobs, static_argnames=("k", "normalise"))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        logits, tokens = _logits(rng, 64, seed), rng.integers(0, 64, ROWS).astype(np.int32)
        ids, values, ranks = ops.logprobs(torch.from_numpy(logits), torch.from_numpy(tokens), k=k, normalise=seed % 3 > 0)
        got = run(logits, tokens, k=k, normalise=seed % 3 > 0)
        np.testing.assert_array_equal(got[0], ids)
        np.testing.assert_array_equal(got[2], ranks)
        np.testing.assert_allclose(got[1], values, atol=1e-5)


def test_more_than_a_few_logprobs_are_left_to_a_sort() -> None:
    binder = Binder(KERNELS)
    assert binder.bind(ops.logprobs, vocab=1000, dtype="float32", k=20, normalise=True).choice.kernel == "one-by-one"
    assert binder.bind(ops.logprobs, vocab=10, dtype="float32", k=20, normalise=True).choice.kernel == "reference"
    assert binder.bind(ops.logprobs, vocab=1000, dtype="float32", k=MOST + 1, normalise=True).choice.kernel == "reference"
