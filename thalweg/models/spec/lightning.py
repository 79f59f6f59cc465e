"""Linear attention that forgets at a fixed rate (lightning attention, Qin et al. 2024, https://arxiv.org/abs/2401.04658)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.hal.kv import StateSpec, state_part
from thalweg.models.spec.norm import HeadNorm, Norm
from thalweg.models.spec.rope import Rope
from thalweg.models.weights import Source, TensorView, Weight, Weights, linear, part_sources


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
    """Of q, k and v; "" = none."""
    head_norm: HeadNorm | None = None
    """Of each head of q and k."""
    rope: Rope | None = None
    """Of q and k, after their norms."""
    scale: float = 1.0
    """Of q."""
    groups: int = 1
    """The concatenated heads are normed in so many groups, each by itself."""
    fused: str = ""
    """The tensor of all of q, then of k, then of v. "": qkv_proj has of each head in turn its q, its k and its v."""
    gate: str = "output_gate"
    norm_name: str = "norm"
    out: str = "out_proj"
    name: str = "self_attn"

    def __post_init__(self) -> None:
        if len(self.slopes) != self.heads or min(self.slopes) <= 0:
            raise ValueError("LightningAttention: each head has a slope above 0")
        if self.inner % self.groups:
            raise ValueError(f"LightningAttention: {self.groups} groups do not divide {self.inner} values")

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def norm(self) -> Norm:
        """Of the concatenated heads."""
        return Norm(self.norm_name, self.inner, self.eps)

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
        at, d, n = f"{at}{self.name}.", self.head_dim, self.inner
        sources: tuple[Source, ...]
        if self.fused:
            sources = part_sources(f"{at}{self.fused}.weight", (n, n, n), hidden)
        else:
            views = (TensorView(f"{at}qkv_proj.weight", (3 * n, hidden), first=i * d, run=d, every=3 * d) for i in range(3))
            qkv = (Source(f"{at}{part}.weight", (n, hidden), within=view) for part, view in zip("qkv", views, strict=True))
            sources = tuple(qkv)
        result = {
            "in": {"weight": Weight((*sources, Source(f"{at}{self.gate}.weight", (n, hidden))), 0, "linear")},
            "norm": self.norm.weights(at),
            "out": linear({f"{at}{self.out}": hidden}, n, shard=1),
        }
        if self.head_norm is not None:
            for key, name in (("q_norm", self.head_norm.q), ("k_norm", self.head_norm.k)):
                result[key] = Norm(name, d, self.head_norm.eps).weights(at)
        return result
