"""Ops that read a weight matrix: embedding lookup and the linear layer. Knows no weight packing: kernels do."""

from __future__ import annotations

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from thalweg.hal.op import Sample, op

ROWS = 16
"""The linear body pads its rows to a multiple of this, see below."""


def _embed_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return rng.integers(0, 50, 9).astype(np.int32), rng.normal(size=(50, 24)).astype(np.float16)


@op(samples=[Sample("small", _embed_sample)], tolerances={"float32": 0, "bfloat16": 0})
def embed(tokens: Tensor, weight: Tensor) -> Tensor:
    """Rows of the table: tokens i32[T], weight [V, H] -> [T, H]."""
    return weight[tokens.long()]


def _linear_sample(rows: int, fan_in: int, fan_out: int, bias: bool = False) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        x = rng.normal(size=(rows, fan_in)).astype(np.float16)
        w = (rng.normal(size=(fan_out, fan_in)) / fan_in**0.5).astype(np.float16)
        return (x, w, rng.normal(size=fan_out).astype(np.float16)) if bias else (x, w)

    return Sample(f"{rows}x{fan_in}x{fan_out}{'+bias' if bias else ''}", make)


@op(
    samples=[
        _linear_sample(1, 64, 48),
        _linear_sample(5, 64, 96, bias=True),
        _linear_sample(33, 256, 64),
        _linear_sample(2, 2048, 32),
    ],
    tolerances={"float32": 1e-5, "bfloat16": 1e-2},
)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias: x [..., in], weight [out, in] (or what the kernel's pack made of it), bias [out] -> [..., out].

    Facts at bind: in_features, out_features, dtype, weight (a WeightFormat).
    Rows are padded to a multiple of 16, because matrix libraries sum in another order for one row, or few, or a
    remainder: padded, a row's result does not depend on how many rows come with it.
    """
    rows = x.reshape(-1, x.shape[-1])
    out = F.linear(F.pad(rows, (0, 0, 0, -rows.shape[0] % ROWS)), weight, bias)
    return out[: rows.shape[0]].reshape(*x.shape[:-1], out.shape[-1])
