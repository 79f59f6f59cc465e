"""Embeddings of n-grams as inputs of residual streams (Engram, Cheng et al. 2026, https://arxiv.org/abs/2601.07372, as
DeepSeek-V4.1 has it)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from thalweg.models.spec.ngram import KeptRows, primes_from
from thalweg.models.weights import Source, Weight, Weights, linear

SEED = 10_007
"""Times the number of a layer: the seed of its factors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngramInput:
    """Embeddings of n-grams, from 2 tokens to `size`, each hashed by several heads into a table. Tokens with the same text but
    for case, accents and spaces are the same. The embeddings give a value, and a key for each residual stream, which gates the
    value by the stream."""

    streams: int
    hidden: int
    eps: float
    dim: int
    """Of an embedding."""
    size: int
    heads: int
    """For each length of n-gram."""
    base: int
    """A head's table has a prime number of rows: of the primes from this on, the one with the head's number among those of all
    layers."""
    total: int
    """Rows of the stored table."""
    index: int
    """Of the layers with such inputs."""
    number: int
    """Of the layer."""
    vocab: int
    """Token ids."""
    merged: int
    """Different tokens among them."""
    pad: int
    """The token id before the first token."""
    tokenizer: str = ""
    """The model's tokenizer.json, by which tokens are merged. "" = there is none, and the layer cannot be loaded."""
    name: str = "engram"

    @property
    def cache(self) -> KeptRows:
        """Merged ids of the last tokens."""
        return KeptRows(size=1, window=self.size, dtype="float32")

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each head's table."""
        each = self.heads * (self.size - 1)
        return primes_from(self.base, each * (self.index + 1))[each * self.index :]

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first row of each head."""
        return tuple(accumulate(self.rows[:-1], initial=0))

    @property
    def multipliers(self) -> tuple[int, ...]:
        """Odd factors of the ids of an n-gram, by distance, of a seeded generator (PCG64)."""
        most = max(1, ((1 << 63) - 1) // self.merged // 2)
        drawn = np.random.default_rng(SEED * self.number).integers(0, most, size=self.size, dtype=np.int64)
        return tuple(2 * int(n) + 1 for n in drawn)

    @property
    def table_bytes(self) -> int:
        """Of the facts that the layer computes: merged ids, factors in 11 parts, rows and offsets of heads, and distances."""
        return 4 * (self.vocab + 11 * self.size + 2 * len(self.rows) + self.size - 1)

    def weights(self, at: str, hidden: int) -> Weights:
        at, n = f"{at}{self.name}.", self.streams
        return {
            "table": {"weight": Weight((Source(f"{at}embed.weight", (self.total, self.dim)),), role="table")},
            "both": linear({f"{at}wkv": (n + 1) * hidden}, len(self.rows) * self.dim, shard=None),
            **{key: {"weight": Weight((Source(f"{at}{key}_weight", (n, hidden)),))} for key in ("q", "k")},
        }
