"""Attention of a second loop over the layers (IQuest-Coder Loop), as two mixers of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.hal.attention import AttnSpec
from thalweg.models.spec.attention import Attention
from thalweg.models.spec.rope import Rope
from thalweg.models.weights import Source, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopedHeads:
    """Projects q, k and v again, and attends to the keys and values of the first loop. It adds nothing to the stream: the mixer
    after it mixes its output. Has no cache."""

    first: Attention
    """The layer of the first loop."""
    reads: int
    """Its index among the declared layers."""
    gates: str
    """The linear layer of a number per head of each head's q, by its whole name."""

    @property
    def rope(self) -> Rope | None:
        return self.first.rope

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.first.widths

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> AttnSpec:
        return self.first.keeps(dtype, kv_dtype, max_len, ranks)

    def weights(self, at: str, hidden: int) -> Weights:
        own: Any = self.first.weights(at, hidden)
        gates = Source(f"{self.gates}.weight", (self.first.heads, self.first.head_dim))
        bias = vector(f"{self.gates}.bias", self.first.heads, shard=0)
        return {"qkv": own["qkv"], "gate": {"weight": Weight((gates,), 0), "bias": bias}}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopedAttention:
    """Attention within a window, with q, k and v of the mixer before it. A gate per head mixes both outputs."""

    near: Attention
    """With the window."""

    @property
    def rope(self) -> Rope | None:
        return self.near.rope

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.near.widths

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> AttnSpec:
        return self.near.keeps(dtype, kv_dtype, max_len, ranks)

    def weights(self, at: str, hidden: int) -> Weights:
        inputs = self.near.heads * self.near.head_dim
        name = f"{at}{self.near.name}.{self.near.out}"
        return {"out": linear({name: hidden}, inputs, shard=1, bias=self.near.out_bias)}
