"""Differential attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

from thalweg.models.spec.attention import Attention
from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Weights, vector

LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentialAttention(Attention):
    """The difference of two attentions, of the first half of the heads and of the second, times a learned factor (Ye et al.
    2024, https://arxiv.org/abs/2410.05258). A head reads two heads of values side by side: that of its group in the first half,
    and in the second. Each difference is normed."""

    start: float
    """Of the factor, before training."""
    eps: float
    subnorm: str = ""
    """The weight of that norm; "" = none."""
    inside: str = ""
    """What precedes its name, and those of the factor's vectors."""
    pairs: bool = False
    """Neighbouring heads make a pair, of q, k and v. False: those of the same number in both halves."""

    def __post_init__(self) -> None:
        Attention.__post_init__(self)
        if self.kv_heads % 2 or self.heads % 2:
            raise ValueError("DifferentialAttention: heads and KV heads have two halves")
        if self.grouped or self.gate or self.gated or self.sinks or self.norm or self.slopes:
            raise ValueError("DifferentialAttention: projections without gates, norms and sinks are implemented")

    @property
    def kept_dim(self) -> int:
        return 2 * self.head_dim

    def cache_form(self) -> Attention:
        return replace(self, reads=None, fused="", start=0.0)

    def weights(self, at: str, hidden: int) -> Weights:
        inside = f"{at}{self.name}.{self.inside}"
        own = {name: vector(f"{inside}{name}", self.head_dim) for name in LAMBDAS}
        result = {**Attention.weights(self, at, hidden), "lambda": own}
        return result | ({"subnorm": Norm(self.subnorm, 2 * self.head_dim, self.eps).weights(inside)} if self.subnorm else {})
