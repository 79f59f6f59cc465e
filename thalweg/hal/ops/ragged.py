"""A ragged batch as ops over recurrent state see it: which sequence each token is of, and where its state lies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Ragged:
    """The arrays of a StepBatch that such ops take, as indices.

    table i32[S, >= 2]: the block a sequence's state is read from, and the one it is written to; context, query, last_row
    i32[S]; token_seq i32[T]."""

    def __init__(self, table: Tensor, context: Tensor, query: Tensor, last_row: Tensor, token_seq: Tensor) -> None:
        self.read, self.write = table[:, 0].long(), table[:, 1].long()
        self.fresh = context == 0
        """[S]; the state before the batch is zeros, whatever the block holds."""
        self.query, self.last, self.seq = query.long(), last_row.long(), token_seq.long()
        self.rows = torch.arange(token_seq.shape[0], device=token_seq.device)
        self.offset = self.rows - (self.last - self.query + 1)[self.seq]
        """[T]; of each token among its sequence's new ones."""

    def start(self, held: Tensor) -> Tensor:
        """Every sequence's state before the batch: [S, *block]."""
        fresh = self.fresh.view(-1, *[1] * (held.dim() - 1))
        return torch.where(fresh, torch.zeros((), dtype=held.dtype, device=held.device), held[self.read])


class _RaggedArrays(NamedTuple):
    """The arrays of a `Ragged`."""

    table: np.ndarray
    context: np.ndarray
    query: np.ndarray
    last_row: np.ndarray
    token_seq: np.ndarray

    @property
    def blocks(self) -> int:
        return 8


def ragged_sample() -> _RaggedArrays:
    """A decode, a chunk that continues from a block it does not write, one shorter than most kernels' taps, and a sequence's
    first tokens, in a block with another sequence's values."""
    query, context = np.array([1, 7, 2, 5], np.int32), np.array([9, 4, 6, 0], np.int32)
    table = np.array([[3, 3], [2, 5], [1, 1], [4, 4]], np.int32)
    return _RaggedArrays(
        table, context, query, np.cumsum(query, dtype=np.int32) - 1, np.repeat(np.arange(4, dtype=np.int32), query)
    )
