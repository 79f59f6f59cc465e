"""Kernels that take short cuts, against the bodies without, where the short cuts matter: large vocabularies, equals,
long prefixes, mixed rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from amounts import some
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.backends.torch_native import KERNELS
from thalweg.hal import ops

RUN = {k.op: k.run for k in reversed(KERNELS)}
I32 = torch.int32


@settings(max_examples=some(20, 60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([40, 500, 3000]), st.sampled_from([0.1, 1.0, 6.0]), st.sampled_from([0, 4]))
@pytest.mark.slow
def test_truncation_by_prefix_is_truncation_by_sort(seed: int, vocab: int, spread: float, grain: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(5, vocab)) * spread
    if grain:
        logits = np.round(logits * grain) / grain
    top_k = rng.choice([0, 0, 1, 3, 128, 129, vocab, 10**6], 5)
    top_p, min_p = rng.choice([1, 1, 0.01, 0.5, 0.95, 0.9999], 5), rng.choice([0, 0, 0.001, 0.3, 1], 5)
    args = (
        torch.tensor(logits).float(),
        torch.tensor(top_k, dtype=I32),
        torch.tensor(top_p).float(),
        torch.tensor(min_p).float(),
    )
    got, want = RUN["truncate"](*args), ops.truncate(*args)
    # The two sum probabilities in different orders, so the edge of top_p may fall one token further; nothing else may.
    left, right = torch.isfinite(got).sum(1), torch.isfinite(want).sum(1)
    assert ((left - right).abs() <= (args[2] < 1)).all()
    same = left == right
    assert torch.equal(got[same], want[same])


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0, 30.0])
def test_bounded_noise_draws_the_same_tokens_as_noise_for_everyone(spread: float) -> None:
    rng = np.random.default_rng(5)
    logits = torch.from_numpy((rng.normal(size=(24, 20_000)) * spread).astype(np.float32))
    logits[3, 5:] = float("-inf")
    seed = torch.from_numpy(rng.integers(-(2**31), 2**31, (24, 2)).astype(np.int32))
    temperature = torch.ones(24)
    temperature[::5] = 0
    args = (logits, temperature, seed, torch.arange(24, dtype=I32))
    assert torch.equal(RUN["sample"](*args, random=True), ops.sample(*args, random=True))


def test_a_row_of_nan_disturbs_no_other_row() -> None:
    logits = torch.randn(3, 500)
    clean = RUN["sample"](logits, torch.ones(3), torch.zeros(3, 2, dtype=I32), torch.arange(3, dtype=I32), random=True)
    logits[1] = float("nan")
    got = RUN["sample"](logits, torch.ones(3), torch.zeros(3, 2, dtype=I32), torch.arange(3, dtype=I32), random=True)
    assert got[[0, 2]].tolist() == clean[[0, 2]].tolist()
    assert 0 <= got[1] < 500
    cut = RUN["truncate"](logits, torch.full((3,), 3, dtype=I32), torch.ones(3), torch.zeros(3))
    assert torch.isfinite(cut[[0, 2]]).sum(1).tolist() == [3, 3]


def test_sparse_penalties_touch_only_what_was_seen() -> None:
    rng = np.random.default_rng(6)
    logits, history = torch.randn(6, 5000), torch.from_numpy(rng.integers(0, 5000, (9, 300)).astype(np.int32))
    lengths = torch.tensor([300, 1, 17, 250, 0, 60], dtype=I32)
    rest = (torch.tensor([3, 8, 1, 2, 0, 5], dtype=I32), lengths, lengths // 2)
    knobs = (torch.rand(6) + 0.5, torch.randn(6), torch.randn(6))
    got, want = (f(logits, history, *rest, *knobs) for f in (RUN["penalties"], ops.penalties))
    assert torch.equal(got, want)
