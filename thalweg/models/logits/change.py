"""The interface of a change of logits by a part of the step, and its context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from thalweg.hal.op import BoundOp


@dataclass(frozen=True, slots=True)
class LogitRows:
    """The rows of the logits: R = S, the last row of each sequence. With drafts R = S + N: then the row before each draft."""

    history: Tensor
    """i32[slots, L]: token ids by slot and position. It holds this step's tokens already, drafts included."""
    slots: Tensor
    """i32[R]; the row of the history of each row's sequence."""
    lengths: Tensor
    """i32[R]; tokens before each row's next token: its position."""
    owners: Tensor | None = None
    """i32[N]; the sequence (0..S-1) of each draft. None: the step has no drafts."""

    def spread(self, values: Tensor) -> Tensor:
        """[R, ...]: values [S, ...] of sequences, for each row."""
        return values if self.owners is None else torch.cat([values, values.index_select(0, self.owners)])

    def locate(self, row: Tensor) -> Tensor:
        """Indices in R of rows that a part names: s of sequence s, -1 - i of the row before draft i."""
        if self.owners is None:
            return row
        return torch.where(row < 0, self.slots.shape[0] - self.owners.shape[0] - 1 - row, row)

    def only_last(self) -> LogitRows:
        """The last row of each sequence."""
        if self.owners is None:
            return self
        n = self.slots.shape[0] - self.owners.shape[0]
        return LogitRows(self.history, self.slots[:n], self.lengths[:n])


class OpBinder(Protocol):
    """Chooses the kernel of an op (`hal.ops`) for f32[R, V] logits."""

    def __call__(self, op: Any, **static: Any) -> BoundOp: ...


class LogitsProcessor(Protocol):
    """Made once per model with a `OpBinder`. Called in every step that has its part."""

    def __call__(self, logits: Tensor, part: Any, rows: LogitRows) -> Tensor:
        """logits f32[R, V], before temperature -> the same, changed. Only a part with `Part.drafts` sees rows of drafts. Pure:
        no argument is written to, and no operation depends on a value in an array."""
