"""Attention of encoders of long texts: to near tokens, and to a few vectors for the whole text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from thalweg.hal.kv import StateSpec
from thalweg.models.spec.attention import RelativeBias
from thalweg.models.spec.norm import LayerNorm, Norm
from thalweg.models.weights import Source, Weight, Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryAttention:
    """LongT5's transient-global attention: a token attends to those less than `window` away, and to the summary of every `run`
    tokens, which is the norm of their sum. Tokens after the last whole run belong to it. A text shorter than a run has no
    summary."""

    heads: int
    head_dim: int
    window: int
    run: int
    norm: Norm
    """Of sums."""
    relative: RelativeBias
    """Between tokens."""
    summary_bias: str
    """The same between a token's run and another run: the name of the tensor, from the root."""
    name: str
    parts: tuple[str, str, str] = ("q", "k", "v")
    out: str = "o"
    scale: float = 1.0
    rope: ClassVar[None] = None

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.heads, self.heads, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        raise NotImplementedError("SummaryAttention is for encoders, which keep nothing")

    def weights(self, at: str, hidden: int) -> Weights:
        shape = (self.relative.buckets, self.heads)
        names = {"relative": self.relative.name, "summary_bias": self.summary_bias}
        return {
            **_projections(f"{at}{self.name}.", hidden, self.heads * self.head_dim, self.parts, self.out),
            "norm": self.norm.weights(f"{at}{self.name}."),
            **{key: Weight((Source(name, shape),), dtype="float32") for key, name in names.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalLocalAttention:
    """PEGASUS-X's global-local attention: the first `globals` rows attend to all, the others to them and to the rows of their
    block. Both kinds have a norm, which this part applies."""

    heads: int
    head_dim: int
    block: int
    staggered: bool
    """The first block has half as many rows."""
    globals: int
    norm: LayerNorm
    global_norm: LayerNorm
    name: str = "self_attn"
    parts: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")
    out: str = "out_proj"
    rope: ClassVar[None] = None

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.heads, self.heads, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        raise NotImplementedError("GlobalLocalAttention is for encoders, which keep nothing")

    def weights(self, at: str, hidden: int) -> Weights:
        return {
            **_projections(f"{at}{self.name}.", hidden, self.heads * self.head_dim, self.parts, self.out),
            "norm": self.norm.weights(at), "global_norm": self.global_norm.weights(at),
        }  # fmt: skip


def _projections(at: str, hidden: int, inner: int, parts: tuple[str, str, str], out: str) -> dict[str, Any]:
    """Every rank has them whole."""
    return {
        "qkv": linear({f"{at}{part}": inner for part in parts}, hidden, shard=None),
        "out": linear({f"{at}{out}": hidden}, inner, shard=None),
    }
