"""Low-rank adapters (Hu et al. 2021) of many requests in one batch: every token names the slot its adapter lies in."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.matmul import linear

NONE = 0
"""The slot of tokens without an adapter. Its contents are not read."""
SLOTS, RANK = 4, 8


def _slots(rng: np.random.Generator, tokens: int) -> np.ndarray:
    return rng.permutation(np.arange(tokens) % (SLOTS - 1)).astype(np.int32)  # the last one has no token


def _shrink_sample(tokens: int, width: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        a = rng.normal(size=(SLOTS, RANK, width)) / width**0.5
        return rng.normal(size=(tokens, width)).astype(np.float16), _slots(rng, tokens), a.astype(np.float16)

    return Sample(f"{tokens}x{width}", make)


def _expand_sample(tokens: int, cols: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        y, low = (rng.normal(size=(tokens, n)).astype(np.float16) for n in (cols, RANK))
        return y, low, _slots(rng, tokens), rng.normal(size=(SLOTS, cols, RANK)).astype(np.float16)

    return Sample(f"{tokens}x{cols}", make)


@op(samples=[_shrink_sample(1, 64), _shrink_sample(9, 160)], tolerances={"float32": 1e-5, "bfloat16": 1e-2})
def lora_shrink(x: Tensor, slots: Tensor, a: Tensor) -> Tensor:
    """x [T, H], slots i32[T], a [slots, rank, H] -> [T, rank]: each token through its adapter's A, 0 without one. Adapters of
    lower rank are filled up with rows of 0."""
    return _through(x, slots, a)


@op(samples=[_expand_sample(1, 48), _expand_sample(9, 200)], tolerances={"float32": 1e-5, "bfloat16": 1e-2})
def lora_expand(y: Tensor, low: Tensor, slots: Tensor, b: Tensor) -> Tensor:
    """y [T, N], low [T, rank], slots i32[T], b [slots, N, rank] -> y + each token's row of low through its adapter's B, rounded
    as a separate layer's output. The adapter's scale (alpha / rank) is in B."""
    return y + _through(low, slots, b)


def _through(x: Tensor, slots: Tensor, weights: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], weights.shape[1], dtype=x.dtype, device=x.device)
    for s in range(NONE + 1, weights.shape[0]):
        out = torch.where((slots == s)[:, None], linear.reference(x, weights[s]), out)
    return out
