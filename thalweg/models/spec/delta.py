"""Gated delta nets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.hal.kv import StateSpec, state_part
from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Source, Weight, Weights, linear, part_sources, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """A gated delta net: q, k and v through short convolutions, then a recurrence (`ops.delta_rule`). Its state is the whole
    state of a sequence. Its heads are normed and multiplied by silu or the sigmoid of a gate, z."""

    key_heads: int
    """Of q and of k; each serves value_heads / key_heads heads of the recurrence."""
    value_heads: int
    key_dim: int
    """Of one head."""
    value_dim: int
    kernel: int
    """Tokens a convolution sees, its own included."""
    eps: float
    act: str = "silu"
    """After the convolutions."""
    grouped: bool = False
    """Two tensors: of each key head in turn its q and k and its value heads' v and z; of each its value heads' b and a. False:
    four, q, k and v in one and z, b and a."""
    apart: bool = False
    """q, k, v, z, b and a have a tensor each, and q, k and v a convolution each, by OLMo's names."""
    joined: bool = False
    """q, k, v, z, b and a are in one tensor, by Lara's names."""
    gate: str = "silu"
    """Of z: silu or sigmoid."""
    norm_offset: float = 0.0
    """Added to the weight of the heads' norm, where the gate is a sigmoid."""
    most: float = 1.0
    """The maximum factor of the update. Above 1 the stored value may change its sign."""
    name: str = "linear_attn"
    rope: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads:
            raise ValueError(f"DeltaNet: {self.value_heads} heads do not share {self.key_heads} queries and keys evenly")
        if self.gate not in ("silu", "sigmoid"):
            raise ValueError(f"DeltaNet: a gate of {self.gate}")
        if self.norm_offset and self.gate != "sigmoid":
            raise ValueError("DeltaNet: an offset of the norm requires a sigmoid")
        if self.kernel < 2:
            raise ValueError(f"DeltaNet: a convolution over {self.kernel} tokens is none")

    @property
    def parts(self) -> tuple[int, int, int]:
        """Values of a token's q, k and v."""
        keys = self.key_heads * self.key_dim
        return keys, keys, self.value_heads * self.value_dim

    @property
    def widths(self) -> tuple[int, int, int]:
        """As attention's: q, k, v and z, in heads of v."""
        q, k, v = self.parts
        return self.value_heads, -(-(q + k + v) // (2 * self.value_dim)), self.value_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """The last inputs of the convolutions, and a matrix for each head."""
        return StateSpec((
            state_part("conv", (self.kernel - 1, sum(self.parts) // ranks), dtype),
            state_part("delta", (self.value_heads // ranks, self.key_dim, self.value_dim), "float32"),
        ))  # fmt: skip

    def weights(self, at: str, hidden: int) -> Weights:
        at, heads, (q, k, v) = f"{at}{self.name}.", self.value_heads, self.parts
        sizes = {"q": q, "k": k, "v": v, "g": v, "b": heads, "a": heads}
        projected = (
            tuple(Source(f"{at}{p}_proj.weight", (n, hidden)) for p, n in sizes.items())
            if self.apart
            else part_sources(f"{at}in_proj.weight", (q, k, v, v, heads, heads), hidden)
            if self.joined
            else (
                Source(f"{at}in_proj_qkvz.weight", (q + k + 2 * v, hidden)),
                Source(f"{at}in_proj_ba.weight", (2 * heads, hidden)),
            )
            if self.grouped
            else (
                *part_sources(f"{at}in_proj_qkv.weight", self.parts, hidden),
                *(Source(f"{at}in_proj_{p}.weight", (n, hidden)) for p, n in (("z", v), ("b", heads), ("a", heads))),
            )
        )
        convs = (
            tuple(Source(f"{at}{p}_conv1d.weight", (n, 1, self.kernel)) for p, n in zip("qkv", self.parts, strict=True))
            if self.apart
            else part_sources(f"{at}conv1d.weight", self.parts, 1, self.kernel)
        )
        norm = "o_norm" if self.apart else "out_norm" if self.joined else "norm"
        return {
            "in": {"weight": Weight(projected, 0, "linear")},
            "conv": {"weight": Weight(convs, 0)},
            "rate": {
                "log": vector(f"{at}A_log", heads, shard=0, dtype="float32"),
                "bias": vector(f"{at}dt_bias", heads, shard=0, fill="ones", dtype="float32"),
            },
            "norm": Norm(norm, self.value_dim, self.eps, self.norm_offset).weights(at),
            "out": linear({f"{at}{'o_proj' if self.apart else 'out_proj'}": hidden}, v, shard=1),
        }
