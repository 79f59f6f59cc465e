"""The interface of a change of logits by a part of the step, and its context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from thalweg.hal.op import BoundOp


@dataclass(frozen=True, slots=True)
class LogitRows:
    """The sequences of the logits."""

    history: Tensor
    """i32[slots, L]: token ids by slot and position. It holds this step's tokens already."""
    slots: Tensor
    """i32[S]; each sequence's row of the history."""
    lengths: Tensor
    """i32[S]; tokens of each sequence so far: the position of the next token."""


class OpBinder(Protocol):
    """Chooses the kernel of an op (`hal.ops`) for f32[S, V] logits."""

    def __call__(self, op: Any, **static: Any) -> BoundOp: ...


class LogitsProcessor(Protocol):
    """Made once per model with a `OpBinder`. Called in every step that has its part."""

    def __call__(self, logits: Tensor, part: Any, rows: LogitRows) -> Tensor:
        """logits f32[S, V], of each sequence's last row, before temperature -> the same, changed. Pure: no argument is
        written to, and no operation depends on a value in an array."""


@runtime_checkable
class DraftLogitsProcessor(Protocol):
    """A `LogitsProcessor` by a part that has rows for drafts (`Part.drafts`)."""

    def ahead(self, logits: Tensor, part: Any) -> Tensor:
        """logits f32[N, V], of the row before each draft -> the same, changed. As pure as the other."""
