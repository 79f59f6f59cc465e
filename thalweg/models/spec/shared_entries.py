"""Compressed attention whose entries several layers share (DeepSeek-V4.1). One layer makes entries and keeps them. Some layers
select entries, and those after them read the same ones."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.hal.kv import RowsSpec
from thalweg.models.spec.compressed import CompressedAttention
from thalweg.models.spec.norm import Norm
from thalweg.models.spec.rope import Rope
from thalweg.models.weights import Source, Weight, Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedEntries:
    """Keeps entries, and a small key of each by which they are selected, for this layer and later ones. Entries come from
    `WindowPooling`, the mixer before it. With a `rate` of 1 they are projections of the tokens. Both are rotated at the
    position of their first token, and rounded (`ops.round_groups`)."""

    rate: int
    """Tokens of an entry."""
    dim: int
    index_dim: int
    eps: float
    rope: Rope
    name: str = "attn"

    @property
    def widths(self) -> tuple[int, int, int]:
        return 1, 1, self.dim + self.index_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> RowsSpec:
        return RowsSpec((self.dim, self.index_dim), dtype, every=self.rate)

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}."
        result: dict[str, Weights] = {
            "key": {"weight": Weight((Source(f"{at}indexer.wk.weight", (self.index_dim, self.dim)),), role="linear")},
            "key_norm": Norm("k_norm", self.index_dim, self.eps).weights(f"{at}indexer."),
        }
        if self.rate == 1:
            result["entry"] = linear({f"{at}compressor.wkv": self.dim}, hidden, shard=None)
            result["entry_norm"] = Norm("norm", self.dim, self.eps).weights(f"{at}compressor.")
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAttention(CompressedAttention):
    """`CompressedAttention` with the entries of the last `SharedEntries` before it. With a `top` it selects entries, else it
    reads those that the last layer with one has selected."""

    blocks: int = 0
    """It also selects so many blocks of entries, for later layers. 0: none."""
    block: int = 0
    """Entries of such a block."""
    among: bool = False
    """It selects entries among those of the selected blocks."""

    def __post_init__(self) -> None:
        CompressedAttention.__post_init__(self)
        if ((self.blocks or self.among) and not (self.block and self.top)) or (self.blocks and self.among):
            raise ValueError("SharedAttention: blocks have a size, and one layer selects them for others that select entries")
