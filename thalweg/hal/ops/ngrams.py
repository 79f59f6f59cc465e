"""Rows of n-grams in tables of embeddings, by multiplicative hashes (Engram, Cheng et al. 2026,
https://arxiv.org/abs/2601.07372)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op

LIMB, LIMBS = 6, 11
"""Bits of a part of a factor, and parts: their products with ids fit 32 bits, and a product of 63 bits fits them."""


def split_factors(factors: Sequence[int]) -> list[list[int]]:
    """Each factor in parts of `LIMB` bits, the lowest first."""
    return [[factor >> LIMB * i & (1 << LIMB) - 1 for i in range(LIMBS)] for factor in factors]


def _sample(name: str, size: int, rows: tuple[int, ...]) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        ids = rng.integers(0, 200_000, (7, size)).astype(np.int32)
        by = [2 * int(n) + 1 for n in rng.integers(0, ((1 << 63) - 1) // 200_000 // 2, size)]
        offsets = np.cumsum((0, *rows[:-1]))
        return ids, *(np.array(a, np.int32) for a in (split_factors(by), rows, offsets))

    return Sample(name, make, {"largest": max(rows)})


@op(samples=[_sample("3-tokens", 3, (31, 37, 41, 43)), _sample("4-tokens", 4, (16_000_057, 20_000_003, 1_000_000_007))])
def hash_ngrams(ids: Tensor, factors: Tensor, rows: Tensor, offsets: Tensor, *, largest: int) -> Tensor:
    """Rows of n-grams that end at each of T tokens, from 2 tokens to N: ids i32[T, N], the token's and those before it, nearest
    first, factors i32[N, LIMBS] (`split_factors`), which times an id have at most 63 bits, rows and offsets i32[H], of each
    head, H a multiple of N - 1. largest: of `rows` -> i32[T, H].

    With f the factors, heads of n tokens have (ids_0 f_0 xor ... xor ids_(n-1) f_(n-1)) mod rows + offsets."""
    shifts = torch.arange(LIMBS, device=ids.device) * LIMB
    products = ids.long() * (factors.long() << shifts).sum(1)
    heads, mixed, parts = rows.shape[0] // (ids.shape[1] - 1), products[:, 0], []
    for i in range(1, ids.shape[1]):
        mixed = mixed ^ products[:, i]
        span = slice((i - 1) * heads, i * heads)
        parts.append(torch.remainder(mixed[:, None], rows[span].long()) + offsets[span])
    return torch.cat(parts, 1).to(torch.int32)
