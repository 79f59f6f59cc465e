"""Mamba-2: state-space duality, with B and C shared by groups of heads."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from thalweg.hal.kv import StateSpec, state_part
from thalweg.models.weights import Weight, Weights, heads_of_rank, linear, part_sources, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """One projection gives a gate, then values, B and C, which go through a short convolution, then the steps of a recurrence
    (`ops.ssd_scan`). Its state is the whole state of a sequence."""

    heads: int
    head_dim: int
    groups: int
    """Groups of heads with the same B and C."""
    state: int
    """Rows of a head's state."""
    kernel: int
    """Tokens a convolution sees, its own included."""
    eps: float
    act: str = "silu"
    bias: bool = False
    """Of the first projection."""
    out_bias: bool = False
    conv_bias: bool = True
    limits: tuple[float, float] = (0.0, inf)
    """Of steps."""
    norm: bool = True
    """Of each group's heads together, after the gate. False: only the gate."""
    norm_first: bool = False
    """The gate comes after the norm."""
    scales: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)
    """Factors of the projected gate, values, B, C and steps."""
    name: str = "mixer"
    rope: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.heads % self.groups:
            raise ValueError(f"Mamba2: {self.groups} groups do not divide {self.heads} heads")
        if self.kernel < 2:
            raise ValueError(f"Mamba2: a convolution over {self.kernel} tokens is none")

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def parts(self) -> tuple[int, int, int]:
        """Inputs of the convolution: values, B, C."""
        shared = self.groups * self.state
        return self.inner, shared, shared

    def parts_of_rank(self, ranks: int) -> tuple[int, int, int]:
        """`parts` on one of so many ranks. With fewer groups than ranks, several ranks have the same one."""
        shared = heads_of_rank(self.groups, ranks) * self.state
        return self.inner // ranks, shared, shared

    @property
    def widths(self) -> tuple[int, int, int]:
        """As in attention: all projections, in heads."""
        return self.heads, -(-(sum(self.parts) + self.heads) // (2 * self.head_dim)), self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """The last inputs of the convolution, and a matrix for each head."""
        return StateSpec((
            state_part("conv", (self.kernel - 1, sum(self.parts_of_rank(ranks))), dtype),
            state_part("ssd", (self.heads // ranks, self.state, self.head_dim), "float32"),
        ))  # fmt: skip

    def weights(self, at: str, hidden: int) -> Weights:
        at, heads, inner = f"{at}{self.name}.", self.heads, self.inner
        projected = dict(zip(("z", "x", "b", "c", "dt"), (inner, *self.parts, heads), strict=True))
        groups = (0, self.groups, self.groups)
        conv = {"weight": Weight(part_sources(f"{at}conv1d.weight", self.parts, 1, self.kernel, heads=groups), 0)}
        if self.conv_bias:
            conv["bias"] = Weight(part_sources(f"{at}conv1d.bias", self.parts, heads=groups), 0)
        return {
            "in": linear(
                {f"{at}{k}": n for k, n in projected.items()},
                hidden,
                shard=0,
                bias=self.bias,
                fused=f"{at}in_proj",
                heads=(0, *groups, 0),
            ),
            "conv": conv,
            "rate": {
                "log": vector(f"{at}A_log", heads, shard=0, dtype="float32"),
                "bias": vector(f"{at}dt_bias", heads, shard=0, fill="ones", dtype="float32"),
                "skip": vector(f"{at}D", heads, shard=0, fill="ones", dtype="float32"),
            },
            "norm": {"weight": vector(f"{at}norm.weight", inner, shard=0, fill="ones")} if self.norm else {},
            "out": linear({f"{at}out_proj": hidden}, inner, shard=1, bias=self.out_bias),
        }
