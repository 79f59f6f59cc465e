"""Attention over depth: parts of a layer read a weighted mean of the sums of earlier runs of layers (Kimi K3)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualBlocks:
    """The streams of a model: the sum of each finished run of layers, and of the open one. The result is their weighted
    mean."""

    count: int
    """Streams at the end."""
    eps: float
    name: str = "output_attn_res"

    def weights(self, at: str, hidden: int) -> Weights:
        return depth_weights(f"{at}{self.name}", hidden, self.eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthAttention:
    """The operations around one part of a layer, its mixer or its feed-forward part. The streams' weighted mean enters the
    part, and its output is added to the open stream. Weights are the softmax of w . norm(stream)."""

    eps: float
    name: str
    """Prefix of its tensors. "": of the first part of a model, which has one stream to read."""
    begins: bool = False
    """The open stream ends before this part, and its output begins the next one."""

    def weights(self, at: str, hidden: int) -> Weights:
        return depth_weights(f"{at}{self.name}", hidden, self.eps) if self.name else {}


def depth_weights(name: str, hidden: int, eps: float) -> Weights:
    """The norm of streams, and w, of one output."""
    return {
        "norm": Norm(f"{name}_norm", hidden, eps).weights(""),
        "proj": linear({f"{name}_proj": 1}, hidden, shard=None),
    }
