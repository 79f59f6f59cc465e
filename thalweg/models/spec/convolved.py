"""Compressed convolutional attention (CCA, https://arxiv.org/abs/2510.04476), as two mixers of a layer: projections with
convolutions over two tokens, which add nothing to the residual stream, and attention with their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.hal.attention import AttnSpec
from thalweg.hal.kv import StateSpec, state_part
from thalweg.models.spec.rope import Rope
from thalweg.models.weights import Source, TensorView, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolvedHeads:
    """q and k are convolved twice, by channel and by head, and half of their sum is added: of each head of k and of the heads
    of q that share it. The second half of v's values are those of the token before. Keeps the last input of each."""

    heads: int
    kv_heads: int
    head_dim: int
    name: str = "self_attn.qkv_proj"
    rope: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.kv_heads * self.head_dim % 2:
            raise ValueError("ConvolvedHeads: heads share those of k evenly, and v has two halves")

    @property
    def channels(self) -> int:
        """Of q and k."""
        return (self.heads + self.kv_heads) * self.head_dim

    @property
    def half(self) -> int:
        """Values of v from each token."""
        return self.kv_heads * self.head_dim // 2

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.heads, 3 * self.kv_heads + self.heads, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """The last q and k, and their first convolution with the last second half of v."""
        return StateSpec((
            state_part("conv", (1, self.channels), dtype), state_part("last", (1, self.channels + self.half), dtype),
        ))  # fmt: skip

    def weights(self, at: str, hidden: int) -> Weights:
        at, n, d = f"{at}{self.name}.", self.channels, self.head_dim
        parts = {
            "q_proj": self.heads * d,
            "k_proj": self.kv_heads * d,
            "v_proj_current": self.half,
            "v_proj_delayed": self.half,
        }
        within = TensorView(f"{at}conv_qk_grouped.weight", (n, d, 2), flat=True)
        return {
            "in": linear({f"{at}{name}": size for name, size in parts.items()}, hidden, shard=None),
            "conv": {
                "weight": Weight((Source(f"{at}conv_qk_depthwise.weight", (n, 1, 2)),)),
                "bias": vector(f"{at}conv_qk_depthwise.bias", n),
            },
            "heads": {
                "weight": Weight((Source(f"{at}conv_qk_grouped.weight.flat", (n, 2 * d), within=within),)),
                "bias": vector(f"{at}conv_qk_grouped.bias", n),
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolvedAttention:
    """Attention with q, k and v of `ConvolvedHeads`, the mixer before it. Heads of q and k have unit mean squares, and those of
    k a learned factor each."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    window: int = 0
    """A token sees itself and the window - 1 tokens before it; 0 = all."""
    name: str = "self_attn"

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.heads, self.kv_heads, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> AttnSpec:
        window = self.window if self.window < max_len else 0
        return AttnSpec(
            heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim, scale=self.head_dim**-0.5, dtype=dtype,
            kind="window" if window else "full", window=window, kv_dtype=kv_dtype,
        )  # fmt: skip

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}."
        return {
            "factor": {"weight": vector(f"{at}qk_norm.temp", self.kv_heads)},
            "out": linear({f"{at}o_proj": hidden}, self.heads * self.head_dim, shard=None),
        }
