"""The batch of an encoder that reads one input in a part of the step."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.hal.step import SamplingArrays, StepBatch

I32 = np.int32


def make_part_batch(part: Any, rows: int = 1) -> StepBatch:
    """One sequence of so many rows, without tokens of its text and without a cache."""
    one, none = np.ones(1, I32), np.zeros(1, I32)
    return StepBatch(
        tokens=np.zeros(rows, I32), token_seq=np.zeros(rows, I32), positions=np.arange(rows, dtype=I32), slots=one,
        context=none, query=one * I32(rows), last_row=one * I32(rows - 1), emit=np.zeros(1, bool),
        block_tables=(np.zeros((1, 1), I32),), sampling=SamplingArrays.greedy(1), parts=(part,),
    )  # fmt: skip
