"""Attention that reads the best blocks of keys, selected by their means (Qwen 4). Three mixers of a layer: the means of closed
blocks, `KeptEntries`, and the attention."""

from __future__ import annotations

from dataclasses import dataclass, replace

from thalweg.hal.attention import AttnSpec
from thalweg.hal.kv import RowsSpec
from thalweg.models.spec.attention import Attention
from thalweg.models.spec.norm import Norm
from thalweg.models.spec.rope import Rope
from thalweg.models.weights import Source, Weight, Weights

AXES, DIGITS, BASE = 3, 4, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledKeys:
    """The mean of the index keys of every `rate` tokens, normed and rotated at the position of the first. Keeps the keys of the
    open block, and with several position axes the positions of its tokens, in `AXES` numbers of `DIGITS` digits below `BASE`,
    each of which every dtype holds exactly."""

    rate: int
    dim: int
    heads: int
    """Of the indexer's queries, whose matrix holds the keys' too."""
    eps: float
    rope: Rope
    name: str = "self_attn"

    @property
    def widths(self) -> tuple[int, int, int]:
        return 1, 1, self.row

    @property
    def row(self) -> int:
        """Values that are kept of a token: its key, as many zeros, and its positions."""
        return 2 * self.dim + (AXES * DIGITS if self.rope.sections else 0)

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> RowsSpec:
        return RowsSpec((self.row,), dtype, window=self.rate)

    def weights(self, at: str, hidden: int) -> Weights:
        own = f"{at}{self.name}.indexer."
        return {
            "k": {"weight": index_rows(own, hidden, self.heads, self.dim, keys=True)},
            "norm": Norm("k_layernorm", self.dim, self.eps, 1.0).weights(own),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledSparseAttention(Attention):
    """Attention in which a token reads at most `top` tokens of closed blocks, those with the largest scores, and all tokens of
    the open one. A block's score is the sum over the indexer's heads of relu(q . k), with k of `KeptEntries`
    (`ops.index_top`)."""

    block: int
    """Tokens of a block."""
    top: int
    index_heads: int
    index_dim: int

    def __post_init__(self) -> None:
        Attention.__post_init__(self)
        if self.rope is None or self.norm is None or self.norm.whole or self.norm.mean or self.norm.after:
            raise ValueError("PooledSparseAttention: it has rotary positions, and a norm of each head before them")
        if self.window or self.chunk or self.sinks or self.softcap or self.value_dim or self.reads is not None:
            raise ValueError("PooledSparseAttention: windows, sinks, caps, narrow values and shared keys are not implemented")
        if self.index_dim < self.rope.dim or self.top % self.block:
            raise ValueError("PooledSparseAttention: its heads rotate as attention's, and it selects whole blocks")

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> AttnSpec:
        """Nothing is selected where no sequence has more than `top` tokens."""
        return replace(Attention.keeps(self, dtype, kv_dtype, max_len, ranks), top=self.top if self.top < max_len else 0)

    def weights(self, at: str, hidden: int) -> Weights:
        own = f"{at}{self.name}.indexer."
        return {
            **Attention.weights(self, at, hidden),
            "index_q": {"weight": index_rows(own, hidden, self.index_heads, self.index_dim, keys=False)},
            "index_norm": Norm("q_layernorm", self.index_dim, self.norm.eps if self.norm else 0.0, 1.0).weights(own),
        }


def index_rows(at: str, hidden: int, heads: int, dim: int, *, keys: bool) -> Weight:
    """The rows of queries, or those of keys behind them, in the matrix of both."""
    first, rows = (heads * dim, dim) if keys else (0, heads * dim)
    return Weight((Source(f"{at}index_qk_proj.weight", (rows, hidden), first, (heads + 1) * dim),), role="linear")
