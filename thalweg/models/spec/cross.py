"""Cross-attention to the encoder's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from thalweg.hal.kv import CrossSpec
from thalweg.models.spec.mlp import MLP
from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """Queries are a sequence's tokens; keys and values are those of its source, which are computed once and kept."""

    heads: int
    head_dim: int
    kv_heads: int = 0
    """0 = as many as `heads`."""
    sources: int
    """Vectors of the longest source."""
    varies: bool = False
    """Sources have different lengths. False: all have `sources` vectors."""
    begins: bool = False
    """A source has a position: tokens before it attend to nothing, and so do sequences without a source."""
    width: int
    """Of a vector of the source."""
    scale: float = 0.0
    """Of the scores; 0 = head_dim ** -0.5."""
    softcap: float = 0.0
    """Scores become cap * tanh(score / cap); 0 = off."""
    bias: bool = False
    """Of q, of v, and of the output."""
    key_bias: bool = False
    """Of k, where the others have one. It changes no weight of a softmax."""
    name: str = "encoder_attn"
    parts: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")
    out: str = "out_proj"
    aligned: tuple[int, ...] = ()
    """Heads whose weights follow the source in the order of the tokens: they align both."""
    norm: float = 0.0
    """Epsilon of RMSNorm of each head of q and k. 0: none."""
    gate: str = ""
    """A number of the layer, whose tanh multiplies the output; "" = none."""
    rope: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.aligned and self.softcap:
            raise ValueError("CrossAttention: heads that align have no cap of scores")

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.heads, self.kv_heads or self.heads, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> CrossSpec:
        """In the model's type, whatever other caches hold."""
        return CrossSpec(self.widths[1] // ranks, self.head_dim, self.sources, dtype, self.varies, self.begins)

    def weights(self, at: str, hidden: int) -> Weights:
        layer, at, inner, width = at, f"{at}{self.name}.", self.heads * self.head_dim, self.widths[1] * self.head_dim
        q, k, v = (f"{at}{part}" for part in self.parts)
        result: dict[str, Any] = {
            "q": linear({q: inner}, hidden, shard=0, bias=self.bias),
            "k": linear({k: width}, self.width, shard=0, bias=self.bias and self.key_bias),
            "v": linear({v: width}, self.width, shard=0, bias=self.bias),
            "out": linear({f"{at}{self.out}": hidden}, inner, shard=1, bias=self.bias),
        }
        if self.norm:
            result |= {f"{part}_norm": Norm(f"{part}_norm", self.head_dim, self.norm).weights(at) for part in "qk"}
        return result | ({"gate": vector(f"{layer}{self.gate}", 1)} if self.gate else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMLP:
    """The feed-forward part of a layer with cross attention, of tokens that attend to a source. For others its output is 0."""

    mlp: MLP
    gate: str
    """A number of the layer, whose tanh multiplies the output."""

    @property
    def width(self) -> int:
        return self.mlp.width

    def weights(self, at: str, hidden: int) -> Weights:
        return {"mlp": self.mlp.weights(at, hidden), "gate": vector(f"{at}{self.gate}", 1)}
