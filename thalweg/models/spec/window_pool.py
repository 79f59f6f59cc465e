"""The projector of Molmo 2: one vector of each window of patches (https://arxiv.org/abs/2601.10611)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.norm import LayerNorm
from thalweg.models.weights import Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPoolSpec:
    """The mean of a window attends to its patches, and a gated feed-forward part follows. Windows are in the batch."""

    root: str
    inputs: int
    """Size of the encoder's vectors, which may be concatenated outputs of several layers."""
    hidden: int
    heads: int
    head_dim: int
    bias: bool
    inner: int
    """Of the feed-forward part."""
    act: str
    inner_bias: bool

    @staticmethod
    def norm(name: str) -> LayerNorm:
        """Unused: it has no norms."""
        return LayerNorm(name, 1, 1e-5)

    def weights(self, outputs: int) -> Weights:
        """outputs: size of the language model's vectors."""
        at, wide = f"{self.root}image_pooling_2d.", self.heads * self.head_dim
        result: dict[str, Any] = {
            "q": linear({f"{at}wq": wide}, self.inputs, shard=0, bias=self.bias),
            "kv": linear({f"{at}wk": wide, f"{at}wv": wide}, self.inputs, shard=0, bias=self.bias),
            "out": linear({f"{at}wo": self.hidden}, wide, shard=0, bias=self.bias),
            "up": linear(
                {f"{self.root}image_projector.w1": self.inner, f"{self.root}image_projector.w3": self.inner}, self.hidden,
                shard=0, bias=self.inner_bias,
            ),
            "down": linear({f"{self.root}image_projector.w2": outputs}, self.inner, shard=0),
        }  # fmt: skip
        return result
