"""Attention of encoders with separate vectors for tokens and distances (DeBERTa)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from thalweg.hal.attention import AttnSpec
from thalweg.models.spec.norm import LayerNorm
from thalweg.models.weights import Source, TensorView, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True)
class Distances:
    """A learned table of distances between tokens, shared by all layers: the row of a key d tokens before its query is
    `half` + d. With buckets only the nearest, a quarter of the rows each way, have separate rows; others share theirs."""

    name: str
    half: int
    """The table has twice as many rows."""
    farthest: int
    """Tokens this far apart and further are in the last rows."""
    buckets: bool = False
    norm: LayerNorm | None = None
    """Of each row."""

    def weights(self, at: str, hidden: int) -> Weights:
        table = {"weight": Weight((Source(f"{at}{self.name}.weight", (2 * self.half, hidden)),))}
        return {"table": table} | ({} if self.norm is None else {"norm": self.norm.weights(at)})


@dataclass(frozen=True, slots=True, kw_only=True)
class DisentangledAttention:
    """Bidirectional. A score is the product of query and key, and of one or both with a layer's projection of their distance
    (`AttentionBackend.attend_placed`)."""

    heads: int
    head_dim: int
    distances: Distances
    keys: bool
    """Queries meet keys of distances (c2p)."""
    queries: bool
    """Keys meet queries of distances (p2c)."""
    shared: bool = False
    """Distances are projected as tokens are."""
    fused: str = ""
    """The tensor with the q, k and v of each head in turn, without biases. The biases of q and v are separate vectors (the
    first DeBERTa)."""
    name: str = "attention"
    parts: tuple[str, str, str] = ("self.query_proj", "self.key_proj", "self.value_proj")
    places: tuple[str, str] = ("self.pos_key_proj", "self.pos_query_proj")
    out: str = "output.dense"
    rope: ClassVar[None] = None
    causal: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.keys or self.queries) or (self.shared and self.fused):
            raise ValueError("DisentangledAttention: distances meet queries or keys, and a fused tensor has none of theirs")

    @property
    def widths(self) -> tuple[int, int, int]:
        """As attention's."""
        return self.heads, self.heads, self.head_dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> AttnSpec:
        """Nothing: the spec that the attention backend is asked for."""
        heads = self.heads // ranks
        scale = (self.head_dim * (1 + self.keys + self.queries)) ** -0.5
        return AttnSpec(heads, heads, self.head_dim, scale, dtype, "encoder", reach=self.distances.farthest, placed=True)

    def weights(self, at: str, hidden: int) -> Weights:
        at, n = f"{at}{self.name}.", self.heads * self.head_dim
        result: dict[str, Any] = {
            "qkv": linear({f"{at}{part}": n for part in self.parts}, hidden, shard=0, bias=True),
            "out": linear({f"{at}{self.out}": hidden}, n, shard=1, bias=True),
        }
        if self.fused:
            result["qkv"] = self._apart(at, hidden)
        if not self.shared:
            used = [name for name, there in zip(self.places, (self.keys, self.queries), strict=True) if there]
            result["places"] = linear({f"{at}{name}": n for name in used}, hidden, shard=0, bias=True)
            if self.fused and self.keys:
                first, *rest = result["places"]["bias"].sources
                result["places"]["bias"] = replace(result["places"]["bias"], sources=(replace(first, absent=True), *rest))
        return result

    def _apart(self, at: str, hidden: int) -> Weights:
        """q, k and v of the fused tensor."""
        d, rows = self.head_dim, self.heads * self.head_dim
        sources = tuple(
            Source(
                f"{at}{part}.weight", (rows, hidden),
                within=TensorView(f"{at}{self.fused}.weight", (3 * rows, hidden), first=i * d, run=d, every=3 * d),
            )
            for i, part in enumerate(self.parts)
        )  # fmt: skip
        q, v = (vector(f"{at}self.{name}_bias", rows).sources[0] for name in "qv")
        bias = (q, Source(f"{at}{self.parts[1]}.bias", (rows,), absent=True), v)
        return {"weight": Weight(sources, 0, "linear"), "bias": Weight(bias, 0)}
