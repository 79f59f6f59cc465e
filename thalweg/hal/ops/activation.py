"""Activations of feed-forward layers, gated (Shazeer 2020) and not."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.hal.op import Sample, op

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def activate(x: Tensor, act: str) -> Tensor:
    """x through the named activation, rounded to x.dtype. ValueError for an unknown name. gelu is written out, because
    host libraries take another routine for it when the rows happen to be contiguous."""
    if act == "silu":
        return F.silu(x)
    if act == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    if act == "gelu":
        wide = x.to(torch.float32)
        return (0.5 * wide * (1 + torch.erf(wide * 0.5**0.5))).to(x.dtype)
    raise ValueError(f"unknown activation {act!r}; known: {', '.join(ACTIVATIONS)}")


def _gated_sample(act: str) -> Sample:
    return Sample(act, lambda rng: (rng.normal(size=(5, 96)).astype(np.float16),), {"act": act})


@op(samples=[_gated_sample(a) for a in ACTIVATIONS], tolerances={"float32": 1e-6, "bfloat16": 1e-2})
def act_and_mul(x: Tensor, *, act: str = "silu") -> Tensor:
    """act(first half) * second half: x [..., 2F] -> [..., F]. act: silu, gelu or gelu_tanh."""
    gate, up = x.chunk(2, -1)
    return activate(gate, act) * up


@op(samples=[_gated_sample(a) for a in ACTIVATIONS], tolerances={"float32": 1e-6, "bfloat16": 1e-2})
def activation(x: Tensor, *, act: str) -> Tensor:
    """act(x), value by value: x [..., F] -> [..., F]. act: silu, gelu or gelu_tanh."""
    return activate(x, act)
