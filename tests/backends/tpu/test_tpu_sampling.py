"""Truncation by bisection and logprobs one by one: exactly what a sort would have given, ties and all."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
import torch
from chips import CHIPS
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh

from thalweg.backends.tpu import TpuOptions
from thalweg.backends.tpu.library import kernels
from thalweg.backends.tpu.pallas import vocabulary
from thalweg.backends.tpu.sampling import KERNELS, MOST, _draw, _logprobs, _one_by_one, _truncate
from thalweg.hal import noise, ops
from thalweg.hal.op import Binder

pytestmark = pytest.mark.slow  # every size is compiled, for seconds
ROWS = 6
WAYS = {"xla": _truncate, "pallas": partial(vocabulary.truncate, interpret=True)}


def _logits(rng: np.random.Generator, vocab: int, seed: int) -> np.ndarray:
    """Spread or flat, with ties in every other case, some tokens banned."""
    logits = rng.normal(size=(ROWS, vocab)) * rng.choice([0.1, 1, 5, 30])
    logits = np.round(logits * 2) / 2 if seed % 2 else logits
    if seed % 5 == 0:
        logits[:, rng.integers(0, vocab)] = -np.inf
    return logits.astype(np.float32)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("vocab", [7, 300, 2100])
def test_truncation_keeps_what_a_sort_keeps(vocab: int, way: str) -> None:
    run = jax.jit(WAYS[way])
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


def test_equals_at_the_border_stay_in_the_order_of_their_ids_wherever_they_lie() -> None:
    """Chunks apart, on either side of the end of the vocabulary's last chunk."""
    vocab, width = 3 * vocabulary.CHUNK + 5, 9
    for seed in range(6):
        rng = np.random.default_rng(seed)
        logits = np.full((width, vocab), -20, np.float32)
        for row in logits:
            row[rng.permutation(vocab)[:50]] = 1.0
            row[rng.permutation(vocab)[:3]] = 2.0
        top_p = rng.uniform(0.05, 0.95, width).astype(np.float32)
        args = (logits, np.zeros(width, np.int32), top_p, np.zeros(width, np.float32))
        want = ops.truncate(*map(torch.from_numpy, args)).numpy()
        np.testing.assert_array_equal(np.asarray(jax.jit(WAYS["pallas"])(*args)), want)
        assert (np.isfinite(want).sum(1) > 3).any()


@pytest.mark.parametrize("vocab", [5, 200, vocabulary.BLOCK + 7])
def test_the_draw_is_the_largest_of_logits_and_the_defined_noise(vocab: int) -> None:
    run = jax.jit(partial(_draw, interpret=True), static_argnames="random")
    for seed in range(8):
        rng = np.random.default_rng(seed)
        logits, some = _logits(rng, vocab, seed), np.array([0, 1, 0.7, 0, 2, 1], np.float32)
        seeds = rng.integers(-(2**31), 2**31, (ROWS, 2)).astype(np.int32)
        position = rng.integers(0, 5000, ROWS).astype(np.int32)
        noisy = logits + noise.noise(seeds, position, np.arange(vocab, dtype=np.int32))
        greedy = logits.argmax(1)
        np.testing.assert_array_equal(run(logits, some, seeds, position, random=False), greedy)
        want = np.where(some > 0, noisy.argmax(1), greedy)
        np.testing.assert_array_equal(run(logits, some, seeds, position, random=True), want)


def test_a_row_of_nothing_but_bans_gives_some_token() -> None:
    logits = np.full((3, 40), -np.inf, np.float32)
    logits[1] = np.nan
    got = _draw(logits, np.ones(3, np.float32), np.zeros((3, 2), np.int32), np.zeros(3, np.int32), random=True, interpret=True)
    assert ((np.asarray(got) >= 0) & (np.asarray(got) < 40)).all()


@pytest.mark.parametrize("kind", CHIPS)
def test_they_lower_for_hardware(kind: str) -> None:
    mesh = AbstractMesh((1,), ("x",), abstract_device=AbstractDevice(device_kind=kind, num_cores=1, platform="tpu"))
    for rows, vocab in ((1, 151_936), (64, 50_257)):
        logits, row, number = (
            jax.ShapeDtypeStruct(s, d) for s, d in (((rows, vocab), "float32"), ((rows,), "float32"), ((rows,), "int32"))
        )
        seed = jax.ShapeDtypeStruct((rows, 2), "int32")
        with jax.sharding.use_abstract_mesh(mesh):
            cut = export.export(jax.jit(vocabulary.truncate), platforms=["tpu"])(logits, number, row, row)
            draw = export.export(jax.jit(partial(_draw, random=True, interpret=False)), platforms=["tpu"])(
                logits, row, seed, number
            )
            best = export.export(jax.jit(partial(vocabulary.best, k=20)), platforms=["tpu"])(logits)
        assert all("tpu_custom_call" in e.mlir_module() for e in (cut, draw, best))


def test_on_hardware_they_serve_and_a_vocabulary_beyond_fast_memory_is_left_to_xla() -> None:
    binder = Binder(kernels(TpuOptions(), on_host=False))
    assert binder.bind(ops.truncate, vocab=151_936).choice.kernel == "pallas-bisect"
    assert binder.bind(ops.sample, vocab=151_936, random=True).choice.kernel == "pallas-draw"
    large = binder.bind(ops.truncate, vocab=1 << 20).choice
    assert (large.kernel, large.refused) == ("bisect", (("pallas-bisect", "holds rows of 360000 tokens at most, not 1048576"),))


BEST = {"xla": _one_by_one, "pallas": partial(vocabulary.best, interpret=True)}


@pytest.mark.parametrize("way", BEST)
@pytest.mark.parametrize("k", [0, 1, 7])
def test_logprobs_are_those_of_a_sort(k: int, way: str) -> None:
    run = jax.jit(partial(_logprobs, best=BEST[way]), static_argnames=("k", "normalise"))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        logits, tokens = _logits(rng, 64, seed), rng.integers(0, 64, ROWS).astype(np.int32)
        ids, values, ranks = ops.logprobs(torch.from_numpy(logits), torch.from_numpy(tokens), k=k, normalise=seed % 3 > 0)
        got = run(logits, tokens, k=k, normalise=seed % 3 > 0)
        np.testing.assert_array_equal(got[0], ids)
        np.testing.assert_array_equal(got[2], ranks)
        np.testing.assert_allclose(got[1], values, atol=1e-5)


def test_the_best_of_a_row_may_be_bans_and_lie_anywhere() -> None:
    vocab = vocabulary.CHUNK + 9
    logits = np.full((3, vocab), -np.inf, np.float32)
    logits[0, [vocab - 1, 3]] = 2.0
    logits[1] = np.round(np.random.default_rng(0).normal(size=vocab), 1)
    want = np.argsort(-logits, 1, kind="stable")[:, :6]
    np.testing.assert_array_equal(jax.jit(partial(BEST["pallas"], k=6))(logits), want)


def test_more_than_a_few_logprobs_are_left_to_a_sort() -> None:
    binder = Binder(kernels(TpuOptions(), on_host=False))
    assert binder.bind(ops.logprobs, vocab=151_936, dtype="float32", k=20, normalise=True).choice.kernel == "pallas-best"
    binder = Binder(KERNELS)
    assert binder.bind(ops.logprobs, vocab=1000, dtype="float32", k=20, normalise=True).choice.kernel == "one-by-one"
    assert binder.bind(ops.logprobs, vocab=10, dtype="float32", k=20, normalise=True).choice.kernel == "reference"
    assert binder.bind(ops.logprobs, vocab=1000, dtype="float32", k=MOST + 1, normalise=True).choice.kernel == "reference"
