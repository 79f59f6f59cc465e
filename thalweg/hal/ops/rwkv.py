"""Recurrences of RWKV-4 (Peng et al. 2023, https://arxiv.org/abs/2305.13048) and RWKV-7 (Peng et al. 2025,
https://arxiv.org/abs/2503.14456)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.pointwise import exponential
from thalweg.hal.ops.ragged import ragged_sample
from thalweg.hal.ops.ssm import StateWalk


def _average_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    rows = ragged_sample()
    shape = (rows.token_seq.size, 40)
    key, value = rng.normal(size=shape) * 3, rng.normal(size=shape)
    decay, bonus = -np.exp(rng.uniform(-3, 1, 40)), rng.normal(size=40)
    held = np.stack([rng.normal(size=(rows.blocks, 40)), rng.uniform(0.5, 3, (rows.blocks, 40)),
                     rng.normal(size=(rows.blocks, 40))], 1)  # fmt: skip
    return *(a.astype(np.float32) for a in (key, value, decay, bonus, held)), *rows


@op(samples=[Sample("40", _average_sample)], tolerances={"float32": 1e-5})
def decaying_average(
    key: Tensor, value: Tensor, decay: Tensor, bonus: Tensor, held: Tensor, table: Tensor, context: Tensor, query: Tensor,
    last_row: Tensor, token_seq: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """RWKV-4's average of values in each channel: key, value f32[T, C], decay f32[C] < 0, bonus f32[C], held f32[blocks, 3, C]
    -> (out f32[T, C], held).

    out is the mean of the values up to token t, with weights exp(key + decay * distance) for those before t, whose distance
    begins with 0, and exp(key + bonus) for t. `held` has the sum of weighted values, the sum of weights, and the logarithm of
    the factor that both lack. The state is kept as that of `ops.selective_scan`. Kernels may write in place: use the result."""
    return average_in_place(key, value, decay, bonus, held.clone(), table, context, query, last_row, token_seq)


def average_in_place(
    key: Tensor, value: Tensor, decay: Tensor, bonus: Tensor, held: Tensor, *batch: Tensor
) -> tuple[Tensor, Tensor]:
    """`decaying_average`, writing to `held`. batch: the last five arguments of the op."""
    out, walk = [], StateWalk(held, *batch)
    for t in range(key.shape[0]):
        total, weight, scale = walk.enter(t)
        scale = torch.where(weight > 0, scale, -1e38)
        k, v = key[t], value[t]
        top = torch.maximum(scale, k + bonus)
        old, new = exponential(scale - top), exponential(k + bonus - top)
        out.append((old * total + new * v) / (old * weight + new))
        top = torch.maximum(scale + decay, k)
        old, new = exponential(scale + decay - top), exponential(k - top)
        walk.leave(t, torch.stack([old * total + new * v, old * weight + new, top]))
    return torch.stack(out), held


def _state_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    rows, heads, dim = ragged_sample(), 3, 16
    shape = (rows.token_seq.size, heads, dim)
    read, key, value, away = (rng.normal(size=shape) for _ in range(4))
    away /= np.linalg.norm(away, axis=-1, keepdims=True)
    decay, back, held = rng.uniform(0.5, 1, shape), -away * rng.uniform(0, 1, shape), rng.normal(size=(8, heads, dim, dim))
    return *(a.astype(np.float32) for a in (read, decay, key, value, away, back, held)), *rows


@op(samples=[Sample("3x16", _state_sample)], tolerances={"float32": 1e-5})
def general_delta_rule(
    read: Tensor, decay: Tensor, key: Tensor, value: Tensor, away: Tensor, back: Tensor, held: Tensor, table: Tensor,
    context: Tensor, query: Tensor, last_row: Tensor, token_seq: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """RWKV-7's delta rule: read, decay, key, value, away, back f32[T, H, N], held f32[blocks, H, N, N] -> (out f32[T, H, N],
    held). Of each head, with S [values, keys]:

        S = S diag(decay) + (S away) back^T + value key^T;  out = S read

    The state is kept as that of `ops.selective_scan`, with the same promise. Kernels may write in place: use the result."""
    return general_rule_in_place(
        read, decay, key, value, away, back, held.clone(), table, context, query, last_row, token_seq
    )  # fmt: skip


def general_rule_in_place(
    read: Tensor, decay: Tensor, key: Tensor, value: Tensor, away: Tensor, back: Tensor, held: Tensor, *batch: Tensor
) -> tuple[Tensor, Tensor]:
    """`general_delta_rule`, writing to `held`. batch: the last five arguments of the op."""
    out, walk = [], StateWalk(held, *batch)
    for t in range(read.shape[0]):
        state = walk.enter(t)
        found = (state * away[t].unsqueeze(1)).sum(-1, keepdim=True)
        state = state * decay[t].unsqueeze(1) + found * back[t].unsqueeze(1) + value[t].unsqueeze(2) * key[t].unsqueeze(1)
        out.append((state * read[t].unsqueeze(1)).sum(-1))
        walk.leave(t, state)
    return torch.stack(out), held
