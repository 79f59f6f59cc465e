"""The indexer of sparse attention over pools of tokens (GLM-5 Next): three mixers of a layer pool index keys, keep them
(`KeptEntries`), and attend to the tokens of the best pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.hal.kv import RowsSpec
from thalweg.models.spec.norm import LayerNorm
from thalweg.models.weights import Source, Weight, Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPooling:
    """One index key for every `rate` tokens: a gated mean of their normed keys (`ops.pool_windows`). Keeps the keys and gates
    of the open pool."""

    rate: int
    dim: int
    eps: float = 1e-6
    name: str = "self_attn.indexer"
    rope: ClassVar[None] = None

    @property
    def norm(self) -> LayerNorm:
        return LayerNorm("k_norm", self.dim, self.eps)

    @property
    def widths(self) -> tuple[int, int, int]:
        return 1, 1, 2 * self.dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> RowsSpec:
        return RowsSpec((2 * self.dim,), dtype, window=self.rate)

    def weights(self, at: str, hidden: int) -> Weights:
        own = f"{at}{self.name}."
        gate = Source(f"{own}index_kpool_compress_gate", (self.dim, hidden))
        bias = Source(f"{own}index_kpool_compress_ape", (self.rate, self.dim))
        return {
            "k": linear({f"{own}wk": self.dim}, hidden, shard=None),
            "gate": {"weight": Weight((gate,))},
            "bias": {"weight": Weight((bias,), fill="zeros", dtype="float32")},
            "norm": self.norm.weights(own),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledIndexer:
    """Separate heads, which read the latent of q. Pools are ranked as `Indexer` ranks tokens, without rotation. The tokens of
    the best pools are read, and those of the open one."""

    heads: int
    dim: int
    rate: int
    """Tokens of a pool."""
    name: str = "indexer"

    def weights(self, at: str, hidden: int, q_latent: int) -> Weights:
        at = f"{at}{self.name}."
        return {
            "q": linear({f"{at}wq_b": self.heads * self.dim}, q_latent, shard=None),
            "down": linear({f"{at}weights_proj": self.heads}, hidden, shard=None),
        }
