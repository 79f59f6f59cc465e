"""Compressed attention (DeepSeek-V4), as three mixers of a layer: windows of tokens are pooled into entries, the entries are
kept, and attention reads the last tokens and some entries. The first two add nothing to the residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.hal.kv import RowsSpec
from thalweg.models.spec.norm import Norm
from thalweg.models.spec.rope import Rope
from thalweg.models.weights import Source, Weight, Weights, linear, vector

GROUP = 32
"""Values of a rounded key, or of an index key, that share a scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPooling:
    """One entry for every `rate` tokens, of projections of their hidden states (`ops.pool_windows`). Keeps the projections of
    the open window."""

    rate: int
    dim: int
    """Of an entry."""
    eps: float
    rope: Rope | None
    """Rotates the last values of an entry, at the position of its first token. None: the mixer after it does."""
    biased: bool = True
    """Gates have a bias for each token of the window."""
    overlaps: bool = False
    """An entry is made of the tokens of the window before too."""
    index_dim: int = 0
    """Of a second, smaller entry, by which entries are selected; 0 = none."""
    name: str = "attn"

    @property
    def widths(self) -> tuple[int, int, int]:
        return 1, 1, sum(self.outputs)

    @property
    def outputs(self) -> tuple[int, ...]:
        """Values of the projections: those of entries and their gates, and the same of the second entries."""
        halves = 2 if self.overlaps else 1
        each = [size * halves for size in (self.dim, self.index_dim) if size]
        return tuple(size for size in each for _ in range(2))

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> RowsSpec:
        return RowsSpec((sum(self.outputs),), dtype, window=self.rate * (2 if self.overlaps else 1))

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}."
        places = [f"{at}compressor."] + [f"{at}indexer.compressor."] * bool(self.index_dim)
        names = [f"{place}{part}" for place in places for part in ("wkv", "wgate")]
        result: dict[str, Weights] = {"down": linear(dict(zip(names, self.outputs, strict=True)), hidden, shard=None)}
        for key, place, size, width in zip(("", "index_"), places, (self.dim, self.index_dim), self.outputs[::2], strict=False):
            if self.biased:
                result[f"{key}bias"] = {
                    "weight": Weight((Source(f"{place}ape", (self.rate, width)),), fill="zeros", dtype="float32")
                }
            result[f"{key}norm"] = Norm("norm", size, self.eps).weights(place)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptEntries:
    """Keeps the entries of `WindowPooling`, the mixer before it."""

    rate: int
    dim: int
    index_dim: int = 0
    rope: ClassVar[None] = None

    @property
    def widths(self) -> tuple[int, int, int]:
        return 1, 1, self.dim + self.index_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> RowsSpec:
        return RowsSpec(tuple(size for size in (self.dim, self.index_dim) if size), dtype, every=self.rate)

    def weights(self, at: str, hidden: int) -> Weights:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """Attention of many heads to one key, which is the value too: to those of the last `window` tokens, and to entries of
    `KeptEntries`, where it follows that mixer (`ops.compressed_attention`). Queries come from a latent, and are normed per
    head where they are `normed`. Positions are rotated in the last values of q and k, and back in the output. Groups of
    heads have a low-rank projection each before the last."""

    heads: int
    head_dim: int
    q_latent: int
    window: int
    groups: int
    group_rank: int
    """Outputs of each group."""
    eps: float
    rope: Rope
    rate: int = 0
    """Tokens of an entry; 0 = there are none."""
    top: int = 0
    """Entries that a token reads, selected by an indexer (`ops.index_top`). 0 = all."""
    index_heads: int = 0
    index_dim: int = 0
    normed: bool = True
    """Are queries?"""
    form: str = ""
    """Of `ops.round_groups`, by which keys are rounded in groups of `GROUP`; "" = they are not."""
    name: str = "attn"

    def __post_init__(self) -> None:
        if self.heads % self.groups or self.rope.dim > min(self.head_dim, self.index_dim or self.head_dim):
            raise ValueError("CompressedAttention: groups divide the heads, and positions rotate a part of each")

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.heads, 1, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> RowsSpec:
        return RowsSpec((self.head_dim,), dtype, window=self.window)

    def weights(self, at: str, hidden: int) -> Weights:
        at, each = f"{at}{self.name}.", self.heads * self.head_dim // self.groups
        grouped = Source(f"{at}wo_a.weight", (self.groups * self.group_rank, each))
        result: dict[str, Weights] = {
            "down": linear({f"{at}wq_a": self.q_latent, f"{at}wkv": self.head_dim}, hidden, shard=None),
            "q_norm": Norm("q_norm", self.q_latent, self.eps).weights(at),
            "kv_norm": Norm("kv_norm", self.head_dim, self.eps).weights(at),
            "q": linear({f"{at}wq_b": self.heads * self.head_dim}, self.q_latent, shard=0),
            "sinks": {"weight": vector(f"{at}attn_sink", self.heads, shard=0, dtype="float32")},
            "groups": {"weight": Weight((grouped,), 0)},
            "out": linear({f"{at}wo_b": hidden}, self.groups * self.group_rank, shard=1),
        }
        if self.top:
            index = f"{at}indexer."
            result["index_q"] = linear({f"{index}wq_b": self.index_heads * self.index_dim}, self.q_latent, shard=None)
            result["index_weights"] = linear({f"{index}weights_proj": self.index_heads}, hidden, shard=None)
        return result
