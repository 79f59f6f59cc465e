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
    held[np.where(keep, row, SCRATCH), np.where(keep, column, 0)] = tokens.numpy()
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


def draft_inputs(
    tokens: Tensor, token_seq: Tensor, positions: Tensor, context: Tensor, query: Tensor, last_row: Tensor, returned: Tensor,
    counts: Tensor, pick: Tensor, *, passes: int, limit: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    owners, count = token_seq.numpy(), counts.numpy()
    n, t = query.shape[0], tokens.shape[0]
    each, i32 = np.arange(n, dtype=np.int32), np.int32
    ends, place = last_row.numpy() + each + i32(1), np.arange(t, dtype=np.int32) + owners
    known, owner, position = np.zeros((3, t + n), np.int32)
    known[place], owner[place], position[place] = tokens.numpy(), owners, positions.numpy()
    owner[ends], position[ends] = each, context.numpy() + query.numpy()
    accepted = np.maximum(count - i32(1), i32(0))
    row = ends - ((pick.numpy() >= 0).sum(1, dtype=np.int32) - accepted)
    emits = count > 0
    known[row[emits]] = returned.numpy()[each[emits], accepted[emits]]
    after = np.minimum(position[row] + np.arange(1 + passes, dtype=np.int32)[:, None], i32(limit - 1))
    made = known, owner, np.minimum(position, i32(limit - 1)), query.numpy() + i32(1), ends, row, after
    return tuple(map(torch.from_numpy, made))


KERNELS = (
    Kernel("history_write", "numpy-in-place", history_write, batch_invariant=True),
    Kernel("verify_drafts", "numpy", verify_drafts, batch_invariant=True),
    Kernel("draft_inputs", "numpy", draft_inputs, batch_invariant=True),
)
