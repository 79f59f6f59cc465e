"""Functions of single values with bits that depend only on the value, not on its place in an array.

Torch computes whole vectors of elements, and uses another routine for the rest at the end of an array or of a thread's share.
The two round differently. Arrays passed here have gaps, which sends every element to that other routine."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def _apart(x: Tensor) -> Tensor:
    """The same values with gaps between them: torch's vector routines do not reach them."""
    return torch.stack([x, x], -1)[..., 0]


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return torch.sigmoid(_apart(x))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))."""
    return F.softplus(_apart(x))


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x), computed in float32 and rounded."""
    return F.silu(_apart(x))


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution function of x, computed in float32 and rounded. approximate: none, or tanh for the
    formula with it (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415)."""
    return F.gelu(_apart(x), approximate=approximate)


def cosine(x: Tensor) -> Tensor:
    """cos(x)."""
    return torch.cos(_apart(x))


def sine(x: Tensor) -> Tensor:
    """sin(x)."""
    return torch.sin(_apart(x))


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return torch.tanh(_apart(x))


def exponential(x: Tensor) -> Tensor:
    """exp(x) of x <= 0, and 0 below -88: sigmoid(x) / sigmoid(-x). torch.exp has no such second routine, and copies arrays with
    gaps into others without."""
    return sigmoid(x) / sigmoid(-x)
