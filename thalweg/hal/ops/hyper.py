"""Weights of hyper-connections (Zhu et al. 2024, https://arxiv.org/abs/2409.19606), whose mixing matrices are made doubly
stochastic (Xie et al. 2025, https://arxiv.org/abs/2512.24880)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.pointwise import sigmoid


def _sample(streams: int, iters: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        outputs = (2 + streams) * streams
        return tuple(rng.normal(size=size).astype(np.float32) for size in ((5, outputs), (outputs,), (3,)))

    return Sample(f"{streams}-streams", make, {"streams": streams, "iters": iters, "eps": 1e-6})


@op(samples=[_sample(4, 20), _sample(2, 1)], tolerances={"float32": 1e-5, "bfloat16": 1e-5})
def hyper_weights(
    logits: Tensor, base: Tensor, scale: Tensor, *, streams: int, iters: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """How the n residual streams of a token enter a part of a layer and leave it: logits f32[T, (2 + n) n], base
    f32[(2 + n) n], scale f32[3] -> (pre f32[T, n], post f32[T, n], comb f32[T, n, n]).

    With l = logits * scale + base, in three parts: pre = sigmoid(l) + eps weighs the streams of the input, post = 2 sigmoid(l)
    the output for each stream, and comb[j, k] the share of stream j in the new stream k. comb is softmax(l) + eps by rows, then
    divided by the sums of its columns, and `iters - 1` times by those of its rows and of its columns (Sinkhorn and Knopp)."""
    n = streams
    pre = sigmoid(logits[:, :n] * scale[0] + base[:n]) + eps
    post = 2 * sigmoid(logits[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = torch.softmax((logits[:, 2 * n :] * scale[2] + base[2 * n :]).view(-1, n, n), -1) + eps
    comb = comb / (_sum(comb, 1) + eps)
    for _ in range(iters - 1):
        comb = comb / (_sum(comb, 2) + eps)
        comb = comb / (_sum(comb, 1) + eps)
    return pre, post, comb


def _sum(x: Tensor, dim: int) -> Tensor:
    """Over a short dimension, which is kept. Written out, so that a token's sum does not depend on the batch size."""
    total = x.narrow(dim, 0, 1)
    for i in range(1, x.shape[dim]):
        total = total + x.narrow(dim, i, 1)
    return total
