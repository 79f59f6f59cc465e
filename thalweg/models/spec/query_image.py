"""The image encoder of BLIP-2 for a text encoder: a vision transformer that a Q-Former reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thalweg.models.spec.norm import LayerNorm
from thalweg.models.spec.qformer import QFormerSpec
from thalweg.models.spec.vision import convolution, plain
from thalweg.models.weights import Source, Weight, Weights, vector

if TYPE_CHECKING:
    from thalweg.models.spec.model import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryImageSpec:
    """A square image in, as many vectors as the Q-Former has queries out. Its layers are `EncoderLayer`s."""

    token: int
    """The placeholder of a vector in a source text."""
    kernel: tuple[int, int, int]
    """Channels, rows and columns of a patch."""
    side: int
    """Patches along an edge."""
    hidden: int
    layers: tuple[Layer, ...]
    norm: LayerNorm
    reads: QFormerSpec
    outputs: int
    root: str = "vision_tower."

    def weights(self) -> Weights:
        at, n, rows = f"{self.root}embeddings.", self.hidden, self.side**2 + 1
        patch = f"{at}patch_embedding"
        result: dict[str, Any] = {
            "patch": {"weight": convolution(patch, n, self.kernel), "bias": vector(f"{patch}.bias", n)},
            "whole": Weight((Source(f"{at}class_embedding", (1, 1, n)),)),
            "places": Weight((Source(f"{at}position_embedding", (1, rows, n)),)),
            "layers": {i: each.weights(f"{self.root}encoder.layers.{i}.", n) for i, each in enumerate(self.layers)},
            "norm": self.norm.weights(self.root), "reads": self.reads.weights(self.outputs),
        }  # fmt: skip
        return plain(result)
