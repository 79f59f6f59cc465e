"""The encoder of an image, for decoders with cross-attention (Mllama)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from thalweg.models.spec.norm import LayerNorm
from thalweg.models.spec.vision import convolution, plain
from thalweg.models.weights import Source, TensorView, Weight, Weights, linear, vector

if TYPE_CHECKING:
    from thalweg.models.spec.model import Layer

MULTIPLE = 8
"""A tile's vectors are filled up to a multiple of this number with zeros, which take part in attention."""
HEADER = 3
"""Numbers in the first row of an image's array: tiles, the number of their arrangement, and the image's position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSource:
    """Layers over the patches of up to `tiles` tiles, which attend to each other, then gated layers. Each patch of a tile gets
    a vector of the language model's size, of the outputs of several layers."""

    tiles: int
    """Tiles of the largest image."""
    side: int
    """Patches along an edge of a tile."""
    kernel: tuple[int, int, int]
    """Channels, rows and columns of a patch."""
    hidden: int
    layers: tuple[Layer, ...]
    last: tuple[Layer, ...]
    """The gated layers."""
    reads: tuple[int, ...]
    """`layers` with outputs that the projector reads, besides that of the gated ones."""
    arrangements: int
    """Arrangements of tiles. They are numbered from 1."""
    eps: float
    outputs: int
    """The language model's hidden size."""
    root: str = "model.vision_model."
    projector: str = "model.multi_modal_projector"

    @property
    def columns(self) -> int:
        """Of an image's array: values of a patch."""
        return prod(self.kernel)

    @property
    def patches(self) -> int:
        """Vectors of a tile: one of its whole, then its patches'."""
        return self.side**2 + 1

    @property
    def sources(self) -> int:
        """Vectors of the largest image."""
        return self.tiles * self.patches

    @property
    def frames(self) -> int:
        """Rows of its largest step."""
        return self.tiles * -(-self.patches // MULTIPLE) * MULTIPLE

    def weights(self, at: str) -> Weights:
        root, n = self.root, self.hidden
        result: dict[str, Any] = {
            "patch": {"weight": convolution(f"{root}patch_embedding", n, self.kernel)},
            "whole": vector(f"{root}class_embedding", n),
            "places": Weight((Source(f"{root}gated_positional_embedding.embedding", (self.patches, n)),)),
            "gate": vector(f"{root}gated_positional_embedding.gate", 1),
            "tile_places": self._table(f"{root}gated_positional_embedding.tile_embedding", self.patches),
            "layers": {i: each.weights(f"{root}transformer.layers.{i}.", n) for i, each in enumerate(self.layers)},
            "last": {i: self._gate_layer(f"{root}global_transformer.layers.{i}.", each) for i, each in enumerate(self.last)},
            "projector": linear({self.projector: self.outputs}, n * (1 + len(self.reads)), shard=None, bias=True),
        }
        for key in ("pre", "post"):
            name = f"{root}{key}_tile_positional_embedding"
            result[f"{key}_tile"] = {"table": self._table(f"{name}.embedding", 1), "gate": vector(f"{name}.gate", 1)}
            result[f"{key}_norm"] = LayerNorm(f"layernorm_{key}", n, self.eps).weights(root)
        return plain(result)

    def _gate_layer(self, at: str, layer: Layer) -> Weights:
        gates = {key: vector(f"{at}gate_{key}", 1) for key in ("attn", "ffn")}
        return {**layer.weights(at, self.hidden), "gates": gates}

    def _table(self, name: str, rows: int) -> Weight:
        """[(1 + arrangements) * tiles * rows, hidden]: so many rows of each tile of each arrangement."""
        stored = (1 + self.arrangements, self.tiles * rows * self.hidden)
        parts = (
            Source(f"{name}.{i}", (self.tiles * rows * self.hidden,), within=TensorView(f"{name}.weight", stored, at=i))
            for i in range(1 + self.arrangements)
        )
        return Weight(tuple(parts))
