"""Guesses at the next tokens of a sequence, verified by the step that computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from thalweg.hal.fields import Array, Part, dim

if TYPE_CHECKING:
    from thalweg.hal.step import StepBatch


@dataclass(slots=True)
class Drafts(Part):
    """They are the last of their sequence's new tokens. One is right if the token before it samples it.

    level: at most so many of a sequence. A step returns one token more per row."""

    row: Array = dim("N", np.int32, fill=1)  # rows of T with guesses
    pick: Array = dim("S most", np.int32, fill=-1)  # [S, level + 1]: index in N of each guess of a sequence, in order; then -1

    def check(self, batch: StepBatch) -> None:
        if self.pick.shape[1] != self.level + 1:
            raise ValueError(f"StepBatch.Drafts.pick: {self.pick.shape[1]} columns, expected {self.level + 1}")
        counts = (self.pick >= 0).sum(1)
        ends = np.repeat(batch.last_row, counts) - np.repeat(np.cumsum(counts), counts) + 1
        known = batch.query - counts
        if (known < (counts > 0)).any() or not np.array_equal(self.row[: ends.size], ends + np.arange(ends.size)):
            raise ValueError("StepBatch.Drafts.row: not the last tokens of their sequences, after a known one")
