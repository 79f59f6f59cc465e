"""Mamba-2 whose B, C and steps are projections of the convolved values (PLaMo 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.hal.kv import StateSpec, state_part
from thalweg.models.weights import Source, TensorView, Weight, Weights, attach_views, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerMamba2:
    """A projection gives each head's gate and values. Values go through a short convolution. A projection of them gives B, C
    and a vector, each normed, and a projection of that vector gives the steps of the recurrence (`ops.ssd_scan`)."""

    heads: int
    head_dim: int
    state: int
    """Rows of a head's state."""
    rank: int
    """Values between the two projections that give a head's step."""
    kernel: int
    """Tokens a convolution sees, its own included."""
    eps: float
    """Of the norms of the vector, B and C."""
    name: str = "mixer"
    rope: ClassVar[None] = None

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def parts(self) -> tuple[int, int, int]:
        """Outputs of the second projection: B, C, the vector."""
        return self.state, self.state, self.rank

    @property
    def widths(self) -> tuple[int, int, int]:
        """As in attention: gates and values, in heads."""
        return self.heads, self.heads, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """The last inputs of the convolution, and a matrix for each head."""
        return StateSpec((
            state_part("conv", (self.kernel - 1, self.inner // ranks), dtype),
            state_part("ssd", (self.heads // ranks, self.state, self.head_dim), "float32"),
        ))  # fmt: skip

    def weights(self, at: str, hidden: int) -> Weights:
        """Rows of the first projection are of each head's gate and of its values in turn."""
        at, n, d = f"{at}{self.name}.", self.inner, self.head_dim
        both = linear({f"{at}z": n, f"{at}x": n}, hidden, shard=0)
        views = [TensorView(f"{at}in_proj.weight", (2 * n, hidden), first=i * d, run=d, every=2 * d) for i in (0, 1)]
        norms = zip(("B", "C", "dt"), self.parts, strict=True)
        return {
            "in": {"weight": attach_views(both["weight"], views)},
            "conv": {"weight": Weight((Source(f"{at}conv1d.weight", (n, 1, self.kernel)),), 0)},
            "chosen": linear({f"{at}bcdt_proj": sum(self.parts)}, n, shard=1),
            "norms": {i: vector(f"{at}{name}_norm_weight", size, fill="ones") for i, (name, size) in enumerate(norms)},
            "step": linear({f"{at}dt_proj": self.heads}, self.rank, shard=0),
            "rate": {
                "log": vector(f"{at}A_log", self.heads, shard=0, dtype="float32"),
                "bias": vector(f"{at}dt_bias", self.heads, shard=0, fill="ones", dtype="float32"),
                "skip": vector(f"{at}D", self.heads, shard=0, fill="ones", dtype="float32"),
            },
            "out": linear({f"{at}out_proj": hidden}, n, shard=1),
        }  # fmt: skip
