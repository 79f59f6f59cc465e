"""The encoder of a source text, for decoders with cross-attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thalweg.models.spec.davit import DaViTSpec
from thalweg.models.spec.norm import AnyNorm
from thalweg.models.spec.query_image import QueryImageSpec
from thalweg.models.spec.rope import Rope
from thalweg.models.weights import Source, Weight, Weights

if TYPE_CHECKING:
    from thalweg.models.spec.model import Layer, LearnedEmbedding


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoder:
    """Layers of bidirectional attention over token embeddings. It gives a vector per token."""

    sources: int
    """Tokens of the longest source."""
    hidden: int
    layers: tuple[Layer, ...]
    norm: AnyNorm | None = None
    """Of the last layer's output."""
    embed: str = ""
    """A separate table of token embeddings; "" = that of the decoder."""
    vocab: int = 0
    """Rows of that table."""
    embed_scale: float = 1.0
    """Of embeddings from it, rounded to the model's dtype."""
    learned: tuple[LearnedEmbedding, ...] = ()
    """Added to embedded tokens."""
    globals: int = 0
    """Learned vectors before the first token. Layers read and change them, and the result lacks them."""
    embed_norm: AnyNorm | None = None
    """Of the first layer's input."""
    vision: DaViTSpec | QueryImageSpec | None = None
    """The encoder of an image, whose vectors replace placeholders of a source."""
    name: str = "encoder."
    layer: str = "layers.{}."

    @property
    def frames(self) -> int:
        """Rows of its largest step."""
        return self.sources

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Each rotary table that some layer reads, once."""
        found: list[Rope] = []
        for mixer in (mixer for layer in self.layers for mixer in layer.mixers):
            if mixer.rope is not None and mixer.rope not in found:
                found.append(mixer.rope)
        return tuple(found)

    def weights(self, at: str) -> Weights:
        at, n = f"{at}{self.name}", self.hidden
        result: dict[str, Any] = {
            "layers": {i: each.weights(at + self.layer.format(i), n) for i, each in enumerate(self.layers)}
        }
        if self.embed:
            table = Source(f"{at}{self.embed}.weight", (self.vocab, n))
            result["embed"] = {"weight": Weight((table,), role="embedding")}
        if self.globals:
            result["globals"] = {"weight": Weight((Source(f"{at}embed_global.weight", (self.globals, n)),), role="embedding")}
        if self.learned:
            result["learned"] = {i: each.weights(at, n) for i, each in enumerate(self.learned)}
        if self.vision is not None:
            result["vision"] = self.vision.weights()
        for key, norm in (("embed_norm", self.embed_norm), ("norm", self.norm)):
            if norm is not None:
                result[key] = norm.weights(at)
        return result
