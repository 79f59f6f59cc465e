"""The recurrence of the matrix LSTM (mLSTM, Beck et al. 2024, https://arxiv.org/abs/2405.04517)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.ragged import ragged_sample
from thalweg.hal.ops.ssm import StateWalk


def _sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    rows, heads = ragged_sample(), 3
    tokens = rows.token_seq.size
    query, key, value = (rng.normal(size=(tokens, heads, n)) for n in (8, 8, 16))
    enters, keeps = rng.normal(size=(tokens, heads)), -np.exp(rng.normal(size=(tokens, heads)))
    held = rng.normal(size=(rows.blocks, heads, 9, 17))
    return *(a.astype(np.float32) for a in (query, key, value, enters, keeps, held)), *rows


@op(samples=[Sample("3x8x16", _sample, {"eps": 1e-6})], tolerances={"float32": 1e-5})
def matrix_lstm(
    query: Tensor, key: Tensor, value: Tensor, enters: Tensor, keeps: Tensor, held: Tensor, table: Tensor, context: Tensor,
    query_lengths: Tensor, last_row: Tensor, token_seq: Tensor, *, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """query, key f32[T, H, K], value f32[T, H, V], enters, keeps f32[T, H], held f32[blocks, H, K + 1, V + 1] -> (out
    f32[T, H, V], held). Of each head, where enters and keeps are logarithms of the gates:

        m' = max(keeps + m, enters);  [C, n] = exp(keeps + m - m') [C, n] + exp(enters - m') key [value, 1]^T;  m = m'
        out = C^T q / (max(|n^T q|, exp(-m)) + eps),  q = query / sqrt(K)

    `held` has C, n in its last column, and m in the last corner. The state is kept as that of `ops.selective_scan`. Kernels may
    write in place: use the result."""
    return matrix_in_place(
        query, key, value, enters, keeps, held.clone(), table, context, query_lengths, last_row, token_seq, eps=eps
    )  # fmt: skip


def matrix_in_place(
    query: Tensor, key: Tensor, value: Tensor, enters: Tensor, keeps: Tensor, held: Tensor, *batch: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """`matrix_lstm`, writing to `held`. batch: the last five arguments of the op."""
    out, walk, scale = [], StateWalk(held, *batch), query.shape[-1] ** -0.5
    counted = torch.cat([value, torch.ones_like(value[..., :1])], -1)
    for t in range(query.shape[0]):
        state = walk.enter(t)
        cells, scalar = state[:, :-1], state[:, -1, -1]
        top = torch.maximum(keeps[t] + scalar, enters[t])
        kept, new = torch.exp(keeps[t] + scalar - top), torch.exp(enters[t] - top)
        added = (new[:, None] * key[t]).unsqueeze(2) * counted[t].unsqueeze(1)
        cells = kept[:, None, None] * cells + added
        found = (cells * (query[t] * scale).unsqueeze(2)).sum(1)
        out.append(found[:, :-1] / (torch.maximum(found[:, -1:].abs(), torch.exp(-top)[:, None]) + eps))
        last = torch.cat([torch.zeros_like(state[:, -1, :-1]), top[:, None]], 1)
        walk.leave(t, torch.cat([cells, last.unsqueeze(1)], 1))
    return torch.stack(out), held
