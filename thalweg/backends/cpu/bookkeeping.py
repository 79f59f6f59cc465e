"""Small integer work of a step in numpy: a call of it costs about a third of a call of torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Kernel
from thalweg.hal.step import SCRATCH


def history_write(history: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """In place."""
    held, row, column = history.numpy(), slots.numpy(), positions.numpy()
    keep = (row != SCRATCH) & (column >= 0) & (column < held.shape[1])
    held[row[keep], column[keep]] = tokens.numpy()[keep]
    return history


def verify_drafts(
    tokens: Tensor, most: Tensor, guesses: Tensor, pick: Tensor, slots: Tensor, lengths: Tensor, emit: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    sampled, places, emits = tokens.numpy(), pick.numpy(), emit.numpy()
    n, width = places.shape
    drafted, column = places >= 0, np.arange(width, dtype=np.int32)
    at = np.where(drafted, places + n, np.arange(n, dtype=np.int32)[:, None])
    right = np.zeros(sampled.size, np.bool_)
    np.equal(sampled[n:], guesses.numpy(), out=right[n:])
    accepted = np.logical_and.accumulate(right[at], 1).sum(1, dtype=np.int32)
    real = (column <= accepted[:, None]) & emits[:, None]
    counts = np.where(emits, accepted + 1, 0).astype(np.int32)
    invalid = (~(most.numpy() < np.inf)[at] & real).any(1)
    owners = np.where(real, slots.numpy()[:, None], np.int32(SCRATCH))
    positions = (lengths.numpy() - drafted.sum(1, dtype=np.int32))[:, None] + column
    made = sampled[at], counts, invalid, owners.reshape(-1), positions.reshape(-1)
    chosen, *others = map(torch.from_numpy, made)
    return (chosen, *others)  # type: ignore[return-value]


KERNELS = (
    Kernel("history_write", "numpy-in-place", history_write, batch_invariant=True),
    Kernel("verify_drafts", "numpy", verify_drafts, batch_invariant=True),
)
