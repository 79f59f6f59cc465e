"""Linear attention that forgets at a fixed rate (lightning attention, Qin et al. 2024, https://arxiv.org/abs/2401.04658)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.hal.kv import StateSpec, state_part
from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Source, TensorView, Weight, Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningAttention:
    """Of each head a matrix is kept, S = exp(-slope) S + k v^T, and gives S^T q. All heads together are normed, and multiplied
    by the sigmoids of a gate."""

    heads: int
    head_dim: int
    slopes: tuple[float, ...]
    """Of each head: how fast it forgets."""
    eps: float = 1e-6
    act: str = "silu"
    """Of q, k and v."""
    name: str = "self_attn"
    rope: ClassVar[None] = None

    def __post_init__(self) -> None:
        if len(self.slopes) != self.heads or min(self.slopes) <= 0:
            raise ValueError("LightningAttention: each head has a slope above 0")

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def norm(self) -> Norm:
        """Of the concatenated heads."""
        return Norm("norm", self.inner, self.eps)

    @property
    def slope_values(self) -> int:
        """Number of computed table values: the scan's rate, bias and skip."""
        return 3 * self.heads

    @property
    def widths(self) -> tuple[int, int, int]:
        """As attention's: q, k, v and the gate."""
        return self.heads, 2 * self.heads, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """A matrix for each head."""
        return StateSpec((state_part("lightning", (self.heads // ranks, self.head_dim, self.head_dim), "float32"),))

    def weights(self, at: str, hidden: int) -> Weights:
        """The checkpoint has of each head in turn its q, its k and its v."""
        at, d, n = f"{at}{self.name}.", self.head_dim, self.inner
        views = (TensorView(f"{at}qkv_proj.weight", (3 * n, hidden), first=i * d, run=d, every=3 * d) for i in range(3))
        qkv = (Source(f"{at}{part}.weight", (n, hidden), within=view) for part, view in zip("qkv", views, strict=True))
        return {
            "in": {"weight": Weight((*qkv, Source(f"{at}output_gate.weight", (n, hidden))), 0, "linear")},
            "norm": self.norm.weights(at),
            "out": linear({f"{at}out_proj": hidden}, n, shard=1),
        }
