"""Small steps run the bookkeeping of drafts as a loop, larger ones as array operations: the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from thalweg.backends.cpu import bookkeeping
from thalweg.hal.step import ON_DEVICE

I32 = np.int32


def _both(monkeypatch: pytest.MonkeyPatch, core: Any, *args: Any, **static: Any) -> list[tuple[np.ndarray, ...]]:
    """The results of `core` as a loop and as array operations."""
    found = []
    for few in (1 << 20, -1):
        monkeypatch.setattr(bookkeeping, "FEW", few)
        out = core(*(a.copy() for a in args), **static)
        found.append(out if isinstance(out, tuple) else (out,))
    return found


def _check(loop: tuple[np.ndarray, ...], arrays: tuple[np.ndarray, ...]) -> None:
    for a, b in zip(loop, arrays, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("seed", range(60))
def test_loops_and_array_operations_agree(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences with and without drafts, right and wrong ones, logits that are no numbers, sequences that emit nothing, and
    sequences at the limit."""
    rng = np.random.default_rng(seed)
    n, most = int(rng.integers(1, 6)), int(rng.integers(0, 4))
    query = rng.integers(1, 5, n).astype(I32)
    drafts = np.minimum(rng.integers(0, most + 1, n), query - 1)
    ends, total = np.cumsum(query, dtype=I32), int(drafts.sum())
    numbers, column = np.cumsum(drafts) - drafts, np.arange(most + 1)
    pick = np.where(column < drafts[:, None], numbers[:, None] + column, -1).astype(I32)
    drawn, guesses = (rng.integers(0, 3, k).astype(I32) for k in (n + total, total))
    largest = np.where(rng.random(n + total) < 0.1, np.nan, 1).astype(np.float32)
    context, emit = rng.integers(0, 20, n).astype(I32), rng.random(n) < 0.8
    verified = _both(
        monkeypatch, bookkeeping.verify_drafts.core, drawn, largest, guesses, pick, rng.integers(0, 4, n).astype(I32),
        context + query, emit,
    )  # fmt: skip
    _check(*verified)
    tokens, owner = rng.integers(0, 9, int(ends[-1])).astype(I32), np.repeat(np.arange(n, dtype=I32), query)
    positions = (np.arange(tokens.size) - (ends - query)[owner] + context[owner]).astype(I32)
    last, result = ends - I32(1), verified[0][:2]
    for fresh in (np.zeros(n, np.bool_), rng.random(n) < 0.5):
        _check(*_both(
            monkeypatch, bookkeeping.pair_inputs.core, tokens, owner, positions, context, query, last, *result, pick,
            fresh, passes=int(rng.integers(0, 4)), limit=int(rng.integers(18, 40)),
        ))  # fmt: skip
    history = rng.integers(0, 9, (n + 1, 22)).astype(I32)
    slots = owner + I32(rng.integers(0, 2))
    (loop,), (arrays,) = _both(monkeypatch, bookkeeping.history_write.core, history, slots, positions, tokens)
    _check((loop[1:],), (arrays[1:],))  # row 0 is scratch
    some = np.where(rng.random(tokens.size) < 0.2, I32(ON_DEVICE), tokens)
    _check(*_both(monkeypatch, bookkeeping.resolve_tokens.core, some, history, slots, positions))
