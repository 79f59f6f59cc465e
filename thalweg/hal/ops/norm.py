"""Root-mean-square norms (Zhang & Sennrich 2019), rounded where the published checkpoints' own code rounds, and layer norms
(Ba et al. 2016)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op

TOLERANCES = {"float32": 2e-6, "bfloat16": 1e-2}


def _norm_sample(*shape: int, residual: bool = False, offset: float = 0.0, weight: bool = True) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        arrays = [rng.normal(size=shape).astype(np.float16) for _ in range(1 + residual)]
        weights = [(1 - offset + 0.1 * rng.normal(size=shape[-1])).astype(np.float16)] if weight else []
        return (*arrays, *weights)

    more = {"offset": offset} if offset else {}
    named = ("-offset" if offset else "") + ("" if weight else "-plain")
    return Sample("x".join(map(str, shape)) + named, make, {"eps": 1e-6} | more)


@op(
    samples=[_norm_sample(1, 64), _norm_sample(7, 128), _norm_sample(5, 4, 32), _norm_sample(7, 128, offset=1.0),
             _norm_sample(5, 4, 32, weight=False)],
    tolerances=TOLERANCES,
)  # fmt: skip
def rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float, offset: float = 0.0) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimension in float32, cast to x.dtype, then times weight, if there is one:
    x [..., H], weight [H] -> [..., H]. The rounding order is that of Llama's published implementation.

    offset: added to the weight. The product is then taken in float32 and cast last, as Gemma's implementation does."""
    wide = x.to(torch.float32)
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    if weight is None:
        return (wide * scale).to(x.dtype)
    if offset:
        return (wide * scale * (weight.to(torch.float32) + offset)).to(x.dtype)
    return weight * (wide * scale).to(x.dtype)


@op(
    samples=[_norm_sample(1, 64, residual=True), _norm_sample(7, 128, residual=True),
             _norm_sample(7, 128, residual=True, offset=1.0)],
    tolerances=TOLERANCES,
)  # fmt: skip
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """The sum x + residual, in their dtype, and its rms_norm: x, residual [..., H] -> (normed, sum)."""
    total = x + residual
    return rms_norm.reference(total, weight, eps=eps, offset=offset), total


def _layer_norm_sample(*shape: int, eps: float = 1e-12, mean: float = 0.0, offset: float = 0.0, given: int = 2) -> Sample:
    """given: 2 = weight and bias, 1 = only the weight, 0 = neither."""

    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        weight, bias = 1 - offset + 0.1 * rng.normal(size=shape[-1]), 0.3 * rng.normal(size=shape[-1])
        return tuple(a.astype(np.float16) for a in (mean + rng.normal(size=shape), weight, bias)[: 1 + given])

    named = ("-far" if mean else "") + ("-offset" if offset else "") + ("", "-no-bias", "-plain")[2 - given]
    return Sample("x".join(map(str, shape)) + named, make, {"eps": eps} | ({"offset": offset} if offset else {}))


@op(
    samples=[_layer_norm_sample(1, 64), _layer_norm_sample(7, 384), _layer_norm_sample(5, 96, eps=1e-5, mean=4.0),
             _layer_norm_sample(7, 64, eps=1e-5, offset=1.0), _layer_norm_sample(7, 64, eps=1e-5, given=1),
             _layer_norm_sample(7, 64, eps=1e-5, given=0)],
    tolerances=TOLERANCES,
)  # fmt: skip
def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float, offset: float = 0.0
) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * (weight + offset) + bias over the last dimension, in float32, cast to x.dtype last:
    x [..., H], weight and bias [H] -> [..., H]. The variance is that of the values themselves, divided by H. Without a weight,
    or a bias, nothing is multiplied, or added."""
    wide = x.to(torch.float32)
    wide = wide - wide.mean(-1, keepdim=True)
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    wide = wide * scale
    if weight is not None:
        wide = wide * (weight.to(torch.float32) + offset)
    return (wide if bias is None else wide + bias.to(torch.float32)).to(x.dtype)
