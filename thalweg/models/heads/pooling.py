"""One vector per sequence: the hidden state of its first or last token, or something of all."""

from __future__ import annotations

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array, StepBatch, StepResult
from thalweg.models.context import Context
from thalweg.models.tail import Pooling


class Pooler:
    """x of a step that holds whole sequences -> f32[S, hidden], not normalised. x [S, hidden] holds the `rows` of a batch, or
    [T, hidden] all rows where there are no such."""

    def __init__(self, ctx: Context, spec: Pooling, hidden: int) -> None:
        self._mode = spec.mode
        averages = spec.mode in ("mean", "mean_sqrt_len", "weightedmean")
        self._mean = ctx.bind(ops.mean_pool, size=hidden) if averages else None
        self._max = ctx.bind(ops.max_pool, size=hidden) if spec.mode == "max" else None

    def rows(self, batch: StepBatch) -> Array | None:
        """i32[S]: the row of each sequence that pooling reads, if it reads one. None: pooling reads all rows."""
        if self._mode == "last":
            return batch.last_row
        if self._mode != "cls":
            return None
        # A padding sequence without tokens begins past the end.
        return (batch.last_row + 1 - batch.query).clamp(max=batch.tokens.shape[0] - 1)

    def __call__(self, x: Array, batch: StepBatch) -> Array:
        if self._max is not None:
            return self._max(x, batch.token_seq, batch.query)
        if self._mean is not None:
            if self._mode == "weightedmean":  # of whole sequences: positions count from 0
                x = x.to(torch.float32) * (batch.positions + 1).unsqueeze(1)
            mean, n = self._mean(x, batch.token_seq, batch.query), batch.query.unsqueeze(1)
            if self._mode == "mean_sqrt_len":
                return mean * n.to(torch.float32).sqrt()
            return mean * 2 / (n + 1) if self._mode == "weightedmean" else mean
        return x.to(torch.float32)


def pooling_result(vectors: Array, batch: StepBatch, row: Array | None = None, each: Array | None = None) -> StepResult:
    """The result of a step that samples nothing: `StepResult.pooled`, and which sequences hold NaN or inf. each:
    `StepResult.each`, of the tokens in these rows."""
    invalid = ~torch.isfinite(vectors).all(1)
    if each is not None and row is not None:
        bad = (~torch.isfinite(each).all(1)).to(torch.float32)
        hit = torch.zeros_like(vectors[:, 0], dtype=torch.float32).index_add(0, batch.token_seq.index_select(0, row), bad)
        invalid = invalid | (hit > 0)
    return StepResult(
        torch.zeros_like(batch.slots).unsqueeze(1), torch.zeros_like(batch.slots), pooled=vectors, invalid=invalid, each=each
    )
