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


def _enter_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    i32 = np.int32
    tokens, token_seq = np.array([5, ON_DEVICE, 7, 8, ON_DEVICE, 2], i32), np.array([0, 0, 1, 1, 2, 3], i32)
    history, slots = rng.integers(0, 99, (4, 10)).astype(i32), np.array([1, 3, 2, SCRATCH], i32)
    return tokens, history, slots, token_seq, np.array([3, 4, 0, 9, 6, 12], i32)


@op(samples=[Sample("mixed", _enter_sample, {"max_len": 9})])
def enter_tokens(
    tokens: Tensor, history: Tensor, slots: Tensor, token_seq: Tensor, positions: Tensor, *, max_len: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The beginning of a step: positions i32[T] below max_len, the tokens i32[T] at these (`resolve_tokens`), and the history
    with them (`history_write`): slots i32[S], token_seq i32[T] -> (tokens, positions, history). An optional op: steps offer it,
    else they call the parts. Kernels may write in place."""
    token_slots, positions = slots.index_select(0, token_seq), positions.clamp(max=max_len - 1)
    known = resolve_tokens.reference(tokens, history, token_slots, positions)
    return known, positions, history_write.reference(history, token_slots, positions, known)


def _emit_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    i32 = np.int32
    history, slots = rng.integers(0, 99, (6, 10)).astype(i32), np.array([1, 3, 2, 5, SCRATCH], i32)
    context, query = np.array([3, 0, 8, 9, 0], i32), np.array([1, 4, 1, 1, 1], i32)
    emit, tokens = np.array([True, True, False, True, False]), np.array([11, 12, 13, 14, 15], i32)
    return history, slots, context, query, emit, tokens, np.array([1.5, np.nan, np.inf, -np.inf, 0.0], np.float32)


@op(samples=[Sample("some-emit", _emit_sample)])
def emit_tokens(
    history: Tensor, slots: Tensor, context: Tensor, query: Tensor, emit: Tensor, tokens: Tensor, most: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The end of a step: the history with the sampled tokens i32[S] of sequences that emit bool[S], at position context +
    query; how many each emits; and which rows are not valid, as the largest logit f32[S] is NaN or infinite. slots, context,
    query i32[S] -> (history, counts i32[S], invalid bool[S]). An optional op, as `enter_tokens`."""
    history = history_write.reference(history, torch.where(emit, slots, SCRATCH), context + query, tokens)
    return history, emit.to(torch.int32), ~(most < float("inf"))
