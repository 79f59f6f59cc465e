"""From the hidden states of a sequence's tokens to one vector."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op


def _pool_sample(*query: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        x = rng.normal(size=(sum(query), 48)).astype(np.float16)
        return x, np.repeat(np.arange(len(query)), query).astype(np.int32), np.array(query, np.int32)

    return Sample("-".join(map(str, query)), make)


@op(samples=[_pool_sample(1), _pool_sample(5, 1, 300, 0)], tolerances={"float32": 1e-6, "bfloat16": 1e-6})
def mean_pool(x: Tensor, token_seq: Tensor, query: Tensor) -> Tensor:
    """The mean of each sequence's rows, in float32: x [T, H], token_seq i32[T], query i32[S] -> f32[S, H]. A sequence without
    tokens has zeros. Sums are taken in float64: rounded, they do not depend on the order in which a device adds."""
    total = x.new_zeros(query.shape[0], x.shape[1], dtype=torch.float64)
    total = total.index_add(0, token_seq, x.to(torch.float64))
    return (total / query.clamp(min=1).unsqueeze(1)).to(torch.float32)


@op(samples=[_pool_sample(1), _pool_sample(5, 1, 300, 0)], tolerances={"float32": 0.0, "bfloat16": 0.0})
def max_pool(x: Tensor, token_seq: Tensor, query: Tensor) -> Tensor:
    """The largest of each column of a sequence's rows: x [T, H], token_seq i32[T], query i32[S] -> f32[S, H]. A sequence
    without tokens has zeros."""
    found = x.new_full((query.shape[0], x.shape[1]), -torch.inf, dtype=torch.float32)
    rows = token_seq.to(torch.int64).unsqueeze(1).expand(x.shape)
    found = found.scatter_reduce(0, rows, x.to(torch.float32), "amax")
    return found.masked_fill(query.unsqueeze(1) == 0, 0.0)
