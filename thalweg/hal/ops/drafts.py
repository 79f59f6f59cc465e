"""The verification of drafts: which sampled tokens a step returns."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.step import SCRATCH


def _verify_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """All right, the second wrong, none, one without drafts, a chunk of a prompt, infinite logits."""
    i32 = np.int32
    pick = np.array([[0, 1, 2, -1], [3, 4, 5, -1], [6, -1, -1, -1], [-1] * 4, [-1] * 4, [7, 8, -1, -1]], i32)
    tokens, most = rng.integers(0, 99, 15).astype(i32), rng.normal(size=15).astype(np.float32)
    guesses = tokens[6:].copy()
    guesses[[4, 6]] += 1
    most[[6 + 5, 6 + 8, 3]] = np.inf
    slots, lengths = np.array([3, 1, 2, 5, 4, 6], i32), np.array([14, 9, 6, 3, 7, 8], i32)
    return tokens, most, guesses, pick, slots, lengths, np.array([1, 1, 1, 1, 0, 1], bool)


@op(samples=[Sample("six-sequences", _verify_sample)])
def verify_drafts(
    tokens: Tensor, most: Tensor, guesses: Tensor, pick: Tensor, slots: Tensor, lengths: Tensor, emit: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The tokens sampled before the drafts of each sequence, as far as drafts are right, and the one after those.

    tokens i32[S + N] and most f32[S + N]: the sample and the largest logit of each sequence's last row, then of the row before
    each draft. guesses i32[N]: the drafts. pick i32[S, K]: index in N of each draft of a sequence, in order, then -1. slots,
    lengths i32[S]: tokens of each sequence with all of its drafts. emit bool[S].

    Returns (tokens i32[S, K], counts i32[S] of real ones, invalid bool[S]: a logit of a real one was NaN or +inf, and for the
    history slots i32[S * K] and positions i32[S * K] of the tokens; SCRATCH for those that are not real)."""
    n, width = pick.shape
    column = torch.arange(width, device=pick.device, dtype=torch.int32)
    row = torch.arange(n, device=pick.device, dtype=torch.int32)
    at = torch.where(pick < 0, row[:, None], pick + n)
    right = torch.cat([row < 0, tokens[n:] == guesses])
    chosen, good, bad = (a.index_select(0, at.flatten()).view(n, width) for a in (tokens, right, ~(most < float("inf"))))
    accepted = good.to(torch.int32).cumprod(1).sum(1).to(torch.int32)
    real = (column <= accepted[:, None]) & emit[:, None]
    first = lengths - (pick >= 0).sum(1).to(torch.int32)
    counts = torch.where(emit, accepted + 1, 0).to(torch.int32)
    owners = torch.where(real, slots[:, None], SCRATCH).flatten()
    return chosen, counts, (bad & real).any(1), owners, (first[:, None] + column).flatten()
