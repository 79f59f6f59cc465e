"""Mixture of attention heads (JetMoE, https://arxiv.org/abs/2404.07413)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.hal.attention import AttnSpec
from thalweg.models.spec.attention import Attention
from thalweg.models.spec.rope import Rope
from thalweg.models.weights import Source, TensorView, Weight, Weights, attach_views, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertAttention:
    """Every token goes to `top_k` experts, each with matrices of q and of the output for as many heads as k and v have. All
    experts share k and v. Every expert's q is computed, and those of the selected ones are read."""

    experts: int
    top_k: int
    kv_heads: int
    """Also an expert's heads."""
    head_dim: int
    rope: Rope
    name: str = "self_attention"

    @property
    def inner(self) -> int:
        """Values of one expert's heads."""
        return self.kv_heads * self.head_dim

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.experts * self.kv_heads, self.kv_heads, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> AttnSpec:
        heads = Attention(heads=self.top_k * self.kv_heads, kv_heads=self.kv_heads, head_dim=self.head_dim)
        return heads.keeps(dtype, kv_dtype, max_len, ranks)

    def weights(self, at: str, hidden: int) -> Weights:
        at, n, own = f"{at}{self.name}.", self.inner, f"{at}{self.name}.experts."
        each = range(self.experts)
        queries: Any = linear({f"{own}{e}.q": n for e in each}, hidden, shard=None)["weight"]
        stored = TensorView(f"{own}input_linear.weight", (self.experts, n, hidden))
        out = {
            e: attach_views(
                linear({f"{own}{e}.out": hidden}, n, shard=None)["weight"],
                [TensorView(f"{own}output_linear.weight", (self.experts, hidden, n), at=e)],
            )
            for e in each
        }
        return {
            "router": {"weight": Weight((Source(f"{own}router.layer.weight", (self.experts, hidden)),))},
            "q": {"weight": attach_views(queries, [TensorView(stored.name, stored.shape, at=e) for e in each])},
            "kv": linear({f"{at}k": n, f"{at}v": n}, hidden, shard=None, fused=f"{at}kv_proj"),
            "out": out,
            "bias": vector(f"{own}bias", hidden),
        }
