"""The token history: one row per slot, one column per position, holding every token a sequence has so far.

Written every step, it lets a later step name a token the host has not seen yet, and lets penalties look back.
Slot 0 is scratch: writes that must not happen (padding, rows that do not emit) are sent to its first column.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.step import ON_DEVICE, SCRATCH


def _resolve_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    i32 = np.int32
    tokens = np.array([5, ON_DEVICE, 7, ON_DEVICE], i32)
    return tokens, rng.integers(0, 99, (4, 10)).astype(i32), np.array([1, 1, 2, 3], i32), np.array([3, 4, 0, 9], i32)


@op(samples=[Sample("mixed", _resolve_sample)])
def resolve_tokens(tokens: Tensor, history: Tensor, token_slots: Tensor, positions: Tensor) -> Tensor:
    """ON_DEVICE ids replaced by ids of the history: tokens i32[T], history i32[slots, L], token_slots i32[T],
    positions i32[T] -> i32[T]."""
    known = history[token_slots.long(), positions.clamp(0, history.shape[1] - 1).long()]
    return torch.where(tokens == ON_DEVICE, known, tokens)


def _write_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    i32 = np.int32
    history = rng.integers(0, 99, (4, 10)).astype(i32)
    return history, np.array([1, 2, 2, 3], i32), np.array([0, 4, 5, 10], i32), np.array([1, 2, 3, 4], i32)


@op(samples=[Sample("last-is-out-of-range", _write_sample)])
def history_write(history: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """The history with tokens[i] at [slots[i], positions[i]]: history i32[slots, L], and slots, positions, tokens
    i32[N].

    A position at or beyond L (the token that reaches the length limit, padding) goes to scratch, as does everything
    of the scratch slot. Kernels may write in place: use the result.
    """
    keep = (slots != SCRATCH) & (positions >= 0) & (positions < history.shape[1])
    row, column = torch.where(keep, slots, SCRATCH), torch.where(keep, positions, 0)
    return history.index_put((row.long(), column.long()), tokens)
