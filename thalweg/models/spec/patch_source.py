"""A plain image encoder (ViT, DeiT), for decoders with cross-attention."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from thalweg.models.spec.norm import LayerNorm
from thalweg.models.spec.vision import convolution, plain
from thalweg.models.weights import Source, Weight, Weights, linear, vector

if TYPE_CHECKING:
    from thalweg.models.spec.model import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSource:
    """Layers of bidirectional attention over learned vectors and the patches of an image. Each of both gets a vector."""

    side: int
    """Patches along an edge of an image."""
    kernel: tuple[int, int, int]
    """Channels, rows and columns of a patch."""
    hidden: int
    layers: tuple[Layer, ...]
    learned: tuple[str, ...]
    """Tensors [1, 1, hidden] of the learned vectors, which stand before the patches."""
    norm: LayerNorm
    projector: str = ""
    """The matrix from `hidden` to the decoder's size; "" = none."""
    outputs: int
    """Size of a vector."""
    root: str = "model.encoder."
    patch: str = "patch_embeddings.projection"
    """The convolution that embeds patches."""
    places: str = "position_embeddings"
    """The learned table of places."""
    layer: str = "encoder.layer.{}."

    @property
    def columns(self) -> int:
        """Of an image's array: values of a patch."""
        return prod(self.kernel)

    @property
    def sources(self) -> int:
        """Vectors of an image."""
        return self.side**2 + len(self.learned)

    @property
    def frames(self) -> int:
        """Rows of its largest step."""
        return self.sources

    def weights(self, at: str) -> Weights:
        root, n = f"{self.root}embeddings.", self.hidden
        patch = f"{root}{self.patch}"
        result: dict[str, Any] = {
            "patch": {"weight": convolution(patch, n, self.kernel), "bias": vector(f"{patch}.bias", n)},
            "places": Weight((Source(f"{root}{self.places}", (1, self.sources, n)),)),
            "learned": {i: Weight((Source(f"{root}{name}", (1, 1, n)),)) for i, name in enumerate(self.learned)},
            "layers": {i: each.weights(f"{self.root}{self.layer.format(i)}", n) for i, each in enumerate(self.layers)},
            "norm": self.norm.weights(self.root),
        }
        if self.projector:
            result["projector"] = linear({self.projector: self.outputs}, n, shard=None, bias=True)
        return plain(result)
