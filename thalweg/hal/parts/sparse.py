"""Tokens that see more tokens than they read (DeepSeek Sparse Attention)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from thalweg.hal.fields import Array, Part, dim


@dataclass(slots=True)
class Sparse(Part):
    """A step without it has none: each of its tokens reads all that it sees."""

    row: Array = dim("N", np.int32)  # rows of T that choose
    pick: Array = dim("T one", np.int32, fill=-1)  # index in N of each token, -1 = it reads all

    @classmethod
    def of(cls, context: Any, query: Any, top: int) -> Self | None:
        """The part for (host) sequences with tokens that read at most `top`. None where no token sees more."""
        if not (context + query > top).any():
            return None
        ends = np.cumsum(query)
        positions = np.arange(int(ends[-1])) - np.repeat(ends - query - context, query)
        row = np.flatnonzero(positions >= top).astype(np.int32)
        pick = np.full(positions.size, -1, np.int32)
        pick[row] = np.arange(row.size, dtype=np.int32)
        return cls(row, pick[:, None])
