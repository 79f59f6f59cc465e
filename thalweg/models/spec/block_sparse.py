"""Attention that reads some blocks of keys."""

from __future__ import annotations

from dataclasses import dataclass, replace

from thalweg.hal.attention import AttnSpec
from thalweg.models.spec.attention import Attention
from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSparseAttention(Attention):
    """Attention in which a token reads at most `top` blocks of keys. An indexer selects them for each head of keys: it has as
    many heads, one key per token, and the norms and rotary positions of attention (`ops.block_top`)."""

    index_dim: int
    """Of a head of the indexer, and of its keys."""
    block: int
    """Keys of a block."""
    top: int
    local: int = 1
    """Blocks up to the token's own that it always reads."""

    def __post_init__(self) -> None:
        Attention.__post_init__(self)
        if self.rope is None or self.norm is None or self.norm.whole or self.norm.mean or self.norm.after:
            raise ValueError("BlockSparseAttention: it has rotary positions, and a norm of each head before them")
        if self.window or self.chunk or self.sinks or self.softcap or self.value_dim or self.reads is not None:
            raise ValueError("BlockSparseAttention: windows, sinks, caps, narrow values and shared keys are not implemented")
        if self.index_dim < self.rope.dim or not 0 <= self.local <= self.top:
            raise ValueError(
                "BlockSparseAttention: heads of the indexer are rotated as attention's, and local blocks are selected"
            )

    @property
    def index_norms(self) -> tuple[Norm, Norm]:
        """Of the indexer's q and k."""
        assert self.norm is not None
        e, offset = self.norm.eps, self.norm.offset
        return Norm("index_q_norm", self.index_dim, e, offset), Norm("index_k_norm", self.index_dim, e, offset)

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> AttnSpec:
        """Keys and values, and the key of the indexer. That is left out where no sequence has more than `top` blocks."""
        top = self.top * self.block if self.top * self.block < max_len else 0
        return replace(Attention.keeps(self, dtype, kv_dtype, max_len, ranks), top=top, index=self.index_dim if top else 0)

    def weights(self, at: str, hidden: int) -> Weights:
        own, d = f"{at}{self.name}.", self.index_dim
        q_norm, k_norm = self.index_norms
        indexer = {
            "q": linear({f"{own}index_q_proj": self.kv_heads * d}, hidden, shard=0, heads=(self.kv_heads,)),
            "k": linear({f"{own}index_k_proj": d}, hidden, shard=None),
            "q_norm": q_norm.weights(own),
            "k_norm": k_norm.weights(own),
        }
        return {**Attention.weights(self, at, hidden), "indexer": indexer}
