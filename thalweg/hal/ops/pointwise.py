"""Functions of single values whose bits do not depend on where in an array the value lies. Torch's own take vectors of
elements, and another routine for those left over at the end; its softmax does not."""

from __future__ import annotations

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)): as a softmax over x and 0."""
    return torch.softmax(torch.stack([x, torch.zeros_like(x)], -1), -1)[..., 0]


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)): the same, of which the logarithm of what is left to 0."""
    return -torch.log_softmax(torch.stack([x, torch.zeros_like(x)], -1), -1)[..., 1]


def exponential(x: Tensor) -> Tensor:
    """exp(x) of x <= 0: the shares of x and 0 in one softmax, divided."""
    shares = torch.softmax(torch.stack([x, torch.zeros_like(x)], -1), -1)
    return shares[..., 0] / shares[..., 1]
