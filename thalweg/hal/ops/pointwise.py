"""Functions of single values whose bits depend on the value alone, not on where in an array it lies.

Torch's own take whole vectors of elements, and another routine for those left over at the end of an array or of a thread's
share of it. The two round differently. So what they get here is an array with gaps, of which every element is left over."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def _apart(x: Tensor) -> Tensor:
    """The same values, none beside the next: torch's vectors do not reach them."""
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


def exponential(x: Tensor) -> Tensor:
    """exp(x) of x <= 0: the shares of x and 0 in one softmax, divided. A softmax takes each row by itself. torch.exp has no
    routine for what is left over, and copies arrays with gaps into others without."""
    shares = torch.softmax(torch.stack([x, torch.zeros_like(x)], -1), -1)
    return shares[..., 0] / shares[..., 1]
