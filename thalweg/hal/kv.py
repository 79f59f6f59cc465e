"""The KV cache as the engine and backends share it: blocks of tokens, in groups of layers.

The engine knows `KVSpec` (how many bytes a block costs and which blocks a sequence may drop). An attention backend
chooses `KVLayout` (how a block lies in memory). Neither knows the other's half.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import ClassVar, Literal

KVKind = Literal["full", "window", "chunked", "latent", "state", "cross", "encoder"]


BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "int64": 8}
"""Bytes of one value, by the name of its dtype."""


SCALE_BYTES = BYTES["float32"]
"""Bytes of the scale of each key and value in a cache of int8."""


def kept_width(head_dim: int, dtype: str) -> int:
    """Elements of the key or the value of a token and head in a cache of this dtype: those of int8 include the scale."""
    return head_dim + (SCALE_BYTES if dtype == "int8" else 0)


def kept_bytes(head_dim: int, dtype: str) -> int:
    """Of the key or the value of a token and head in a cache of this dtype."""
    return kept_width(head_dim, dtype) * BYTES[dtype]


@dataclass(frozen=True, slots=True)
class KVSpec:
    """One KV group: layers that share block tables because they keep the same tokens. Groups may differ in block size.

    The block table of a group of kind "state" has two columns. The first is the block with the state before a step's
    first token (where `context` is 0: zeros, whatever the block holds). The second is the block that the state after
    its last token is written to. That of kind "cross" has one, the block with a sequence's whole source."""

    kind: KVKind
    block_tokens: int
    """Tokens of a block. Kind "state": a block holds a sequence's whole state, and the prefix cache keeps states at
    multiples of this many tokens. Kind "cross": means nothing, as blocks hold no tokens."""
    bytes_per_block: int
    """Bytes of all layers of the group together."""
    layers: tuple[int, ...]
    """Indices of their caches: a layer with two mixers has two, one with none has none."""
    window: int = 0
    """kind "window": a token attends to itself and the window - 1 before it. Kind "chunked": to those of the same chunk of so
    many tokens, up to itself. Older blocks may be freed. 0 otherwise."""
    top: int = 0
    """The most kept tokens that one token reads. Steps have the part `Sparse` for tokens that see more. 0 = all."""
    rows: bool = False
    """Of layers with a `RowsSpec`. Kind "window": its tokens may cost many times those of other groups, so its cache has room
    for running sequences only, not for all tokens of the others."""
    spare: bool = False
    """Kind "state", of an engine with steps that verify drafts: the table has a third column, a private block of the sequence.
    A step with drafts writes states there while the number of accepted ones is unknown."""

    def __post_init__(self) -> None:
        if self.block_tokens < 1 or self.bytes_per_block < 0:
            raise ValueError(
                f"KVSpec: block_tokens {self.block_tokens} and bytes_per_block {self.bytes_per_block} must be positive"
            )
        if (self.kind in ("window", "chunked")) != (self.window > 0):
            raise ValueError(f"KVSpec: window {self.window} does not fit kind {self.kind!r}")


@dataclass(frozen=True, slots=True)
class KVLayout:
    """How one layer's cache lies in memory. `shape` is that of one block. The device puts the block index first."""

    shape: tuple[int, ...]
    dtype: str
    signature: str
    """Equal signatures may exchange raw blocks (between processes, or with a store)."""
    apart: bool = False
    """Blocks need not be contiguous: readers ask the array for the distance. A device may therefore interleave those of several
    layers."""

    @property
    def bytes_per_block(self) -> int:
        n = BYTES[self.dtype]
        for d in self.shape:
            n *= d
        return n


@dataclass(frozen=True, slots=True)
class StateSpec:
    """State of a recurrent layer for one sequence, on one rank: arrays of sizes that do not depend on its length, each in a
    separate cache. Ops read and write them, so there is one layout. Its group is of kind "state"."""

    parts: tuple[KVLayout, ...]
    kind: ClassVar[KVKind] = "state"
    window: ClassVar[int] = 0

    @property
    def bytes_per_block(self) -> int:
        return sum(p.bytes_per_block for p in self.parts)


@dataclass(frozen=True, slots=True)
class CrossSpec:
    """State of a cross-attention layer for one sequence, on one rank: keys and values of the whole encoder output of its
    source. The first step of a sequence's stay writes them, and every step reads them. Ops read and write them. Its group is of
    kind "cross": one block a sequence, and a table of one column."""

    heads: int
    head_dim: int
    sources: int
    """Vectors of the longest source."""
    dtype: str
    varies: bool = False
    """Sources have different lengths, which are kept too."""
    begins: bool = False
    """A source is not seen by the tokens before it, and its position is kept too. Requires `varies`."""
    kind: ClassVar[KVKind] = "cross"
    window: ClassVar[int] = 0

    @property
    def parts(self) -> tuple[KVLayout, ...]:
        """Of keys, of values, of the number of vectors if it `varies`, and of the position if it `begins`."""
        shape = (self.heads, self.sources, self.head_dim)
        both = state_part("cross-key", shape, self.dtype), state_part("cross-value", shape, self.dtype)
        names = [name for name, wanted in (("cross-length", self.varies), ("cross-begin", self.begins)) if wanted]
        return (*both, *(state_part(name, (1, 1, 1), "float32") for name in names))

    @property
    def bytes_per_block(self) -> int:
        return sum(p.bytes_per_block for p in self.parts)


@dataclass(frozen=True, slots=True)
class RowsSpec:
    """What a layer keeps of a sequence's tokens for its own ops, on one rank: rows of values, one for each token or for every
    few tokens. Backends of attention know nothing of them."""

    sizes: tuple[int, ...]
    """Values of a row, in each of its arrays."""
    dtype: str
    window: int = 0
    """Only the rows of a token and of the window - 1 before it are needed. 0: those of all tokens."""
    every: int = 1
    """Tokens that share a row. A block holds a multiple of them."""

    @property
    def kind(self) -> KVKind:
        return "window" if self.window else "full"

    def block_tokens(self, block_tokens: int) -> int:
        """Tokens of a block, where those of keys and values hold `block_tokens`."""
        return lcm(block_tokens, self.every)

    def parts(self, block_tokens: int) -> tuple[KVLayout, ...]:
        """Of each array."""
        rows = self.block_tokens(block_tokens) // self.every
        return tuple(state_part("rows", (rows, size), self.dtype) for size in self.sizes)


def state_part(name: str, shape: tuple[int, ...], dtype: str) -> KVLayout:
    """One of those arrays, of this shape for one sequence."""
    return KVLayout(shape, dtype, f"{name}/{dtype}/{'x'.join(map(str, shape))}")
