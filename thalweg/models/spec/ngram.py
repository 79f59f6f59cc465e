"""Embeddings of a token and the tokens before it, as inputs of a layer (Qwen 4)."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import ClassVar

from thalweg.hal.kv import RowsSpec
from thalweg.models.weights import Source, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRows:
    """A mixer that only keeps rows of the last tokens, for what is around the layer."""

    size: int
    window: int
    dtype: str = ""
    """"" = the model's."""
    rope: ClassVar[None] = None

    @property
    def widths(self) -> tuple[int, int, int]:
        return 1, 1, self.size

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> RowsSpec:
        return RowsSpec((self.size,), self.dtype or dtype, window=self.window)

    def weights(self, at: str, hidden: int) -> Weights:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class NGramInput:
    """Embeddings of n-grams, from 2 tokens to `size`, each hashed by several heads into a table. They give a value, and a key
    for each residual stream, which gates the value by the stream. A convolution over earlier tokens, `size` apart, is added."""

    streams: int
    hidden: int
    dim: int
    """Of the embeddings of all heads together."""
    size: int
    heads: int
    """For each length of n-gram."""
    base: int
    """A head's table has a prime number of rows: of the primes from this on, the one with the head's number among those of all
    layers."""
    divisor: int
    """Rows of the whole table are a multiple of this."""
    parts: int
    """Tensors that hold the table."""
    index: int
    """Of the layers with such inputs."""
    seed: int
    vocab: int
    end: int
    """The token id that no n-gram crosses."""
    taps: int
    """Tokens that the convolution reads."""
    eps: float
    name: str = "ple"

    @property
    def caches(self) -> tuple[KeptRows, KeptRows]:
        """Ids of the last tokens, and the last inputs of the convolution."""
        return (
            KeptRows(size=1, window=self.size, dtype="float32"),
            KeptRows(size=self.streams * self.hidden, window=(self.taps - 1) * self.size + 1),
        )

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each head's table."""
        each = self.heads * (self.size - 1)
        return primes_from(self.base, each * (self.index + 1))[each * self.index :]

    @property
    def multipliers(self) -> tuple[int, ...]:
        """Odd factors of the ids of an n-gram, by distance, from a seeded generator (Steele et al. 2014, SplitMix)."""
        half = max(1, ((1 << 63) - 1) // max(1, self.vocab) // 2)
        first = self.seed + 10_007 * self.index
        return tuple(2 * (_mix(first + _GAMMA * (i + 1)) % half) + 1 for i in range(self.size))

    @property
    def table_bytes(self) -> int:
        """Of the facts that the layer computes: factors in 11 parts, rows and offsets of heads, and distances."""
        return 4 * (11 * self.size + 2 * len(self.rows) + self.size - 1 + self.taps)

    def weights(self, at: str, hidden: int) -> Weights:
        at, wide = f"{at}{self.name}.", self.streams * hidden
        total = -(-sum(self.rows) // self.divisor) * self.divisor
        share = -(-total // self.parts)
        width = self.dim // (self.heads * (self.size - 1))
        table = tuple(
            Source(f"{at}ple_embedding.ngram_embedding.shard_{i}.weight", (min(share, total - i * share), width))
            for i in range(self.parts)
        )
        return {
            "table": {"weight": Weight(table)},
            "key": linear({f"{at}key_proj": wide}, self.dim, shard=None),
            "value": linear({f"{at}value_proj": hidden}, self.dim, shard=None),
            **{k: {"weight": vector(f"{at}{k}.weight", wide)} for k in ("norm_key", "norm_query", "norm_conv")},
            "conv": {"weight": Weight((Source(f"{at}conv1d.weight", (wide, 1, self.taps)),))},
        }


def primes_from(base: int, count: int) -> tuple[int, ...]:
    """The first primes that are at least `base`."""
    primes, number = list[int](), base - 1
    while len(primes) < count:
        number += 1
        if _is_prime(number):
            primes.append(number)
    return tuple(primes)


_GAMMA, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def _mix(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return (value ^ (value >> 31)) & _MASK


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in (2, *range(3, isqrt(n) + 1, 2)) if d < n)
