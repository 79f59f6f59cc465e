"""Differential attention."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.attention import Attention
from thalweg.models.weights import Weights, vector

LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentialAttention(Attention):
    """The difference of two attentions, of the first half of the heads and of the second, times a learned factor (Ye et al.
    2024, https://arxiv.org/abs/2410.05258). A head reads two heads of values side by side: that of its group in the first half,
    and in the second. Each difference is normed, without a weight."""

    start: float
    """Of the factor, before training."""
    eps: float

    def __post_init__(self) -> None:
        Attention.__post_init__(self)
        if self.kv_heads % 2 or self.heads % 2:
            raise ValueError("DifferentialAttention: heads and KV heads have two halves")
        if self.fused or self.gate or self.gated or self.sinks or self.norm or self.slopes or self.reads is not None:
            raise ValueError("DifferentialAttention: separate projections without gates, norms and sinks are implemented")

    @property
    def kept_dim(self) -> int:
        return 2 * self.head_dim

    def weights(self, at: str, hidden: int) -> Weights:
        own = {name: vector(f"{at}{self.name}.{name}", self.head_dim) for name in LAMBDAS}
        return {**Attention.weights(self, at, hidden), "lambda": own}
