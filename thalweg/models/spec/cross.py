"""Cross-attention to the encoder's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.hal.kv import CrossSpec
from thalweg.models.weights import Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """Queries are a sequence's tokens; keys and values are those of its source, which are computed once and kept."""

    heads: int
    head_dim: int
    sources: int
    """Vectors of the longest source."""
    varies: bool = False
    """Sources have different lengths. False: all have `sources` vectors."""
    width: int
    """Of a vector of the source."""
    scale: float = 0.0
    """Of the scores; 0 = head_dim ** -0.5."""
    bias: bool = False
    """Of q, of v, and of the output."""
    key_bias: bool = False
    """Of k, where the others have one. It changes no weight of a softmax."""
    name: str = "encoder_attn"
    parts: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")
    out: str = "out_proj"
    aligned: tuple[int, ...] = ()
    """Heads whose weights follow the source in the order of the tokens: they align both."""
    rope: ClassVar[None] = None

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.heads, self.heads, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> CrossSpec:
        """In the model's type, whatever other caches hold."""
        return CrossSpec(self.heads // ranks, self.head_dim, self.sources, dtype, self.varies)

    def weights(self, at: str, hidden: int) -> Weights:
        at, inner = f"{at}{self.name}.", self.heads * self.head_dim
        q, k, v = (f"{at}{part}" for part in self.parts)
        return {
            "q": linear({q: inner}, hidden, shard=0, bias=self.bias),
            "k": linear({k: inner}, self.width, shard=0, bias=self.bias and self.key_bias),
            "v": linear({v: inner}, self.width, shard=0, bias=self.bias),
            "out": linear({f"{at}{self.out}": hidden}, inner, shard=1, bias=self.bias),
        }
