"""Convolutions over one sequence, [channels, T]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.step import Array
from thalweg.models.weights import ParamSpec, Weight


def convolve(
    p: Mapping[str, Array], x: Array, *, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1
) -> Array:
    """With "lengths", each output's matrix is scaled to its length."""
    kernel = p["kernel"]
    if "lengths" in p:
        kernel = kernel * (p["lengths"] / kernel.norm(dim=(1, 2), keepdim=True))
    result: Array = functional.conv1d(x[None], kernel, p.get("bias"), stride, padding, dilation, groups)[0]
    return result


def convolve_causal(p: Mapping[str, Array], x: Array, *, stride: int = 1, dilation: int = 1) -> Array:
    """Silence precedes x: no output depends on later places than those of its own stride."""
    padded = functional.pad(x, ((p["kernel"].shape[-1] - 1) * dilation + 1 - stride, 0))
    return convolve(p, padded, stride=stride, dilation=dilation)


def normalise(p: Mapping[str, Array], x: Array, eps: float) -> Array:
    """Layer norm of x [T, n]."""
    result: Array = functional.layer_norm(x, x.shape[-1:], p["scale"], p["shift"], eps)
    return result


def float32_specs(tree: Any) -> Any:
    """A tree of weights as parameters in float32."""
    if isinstance(tree, Weight):
        return ParamSpec(tree, "float32")
    return {key: float32_specs(part) for key, part in tree.items()}


def rotate(x: Array, table: Array) -> Array:
    """Rotary positions of x [..., T, size] by rows [T, size] of `cos_sin_table`: halves of each head turn together."""
    half = x.shape[-1] // 2
    cos, sin = table[:, :half], table[:, half:]
    first, second = x[..., :half], x[..., half:]
    turned: Array = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned
