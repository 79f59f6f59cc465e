"""Repetition, presence and frequency penalties."""

from __future__ import annotations

from torch import Tensor

from thalweg.hal import ops
from thalweg.hal.parts.penalties import Penalties
from thalweg.models.logits.change import Bind, Rows


class PenaltiesChange:
    def __init__(self, bind: Bind) -> None:
        self._op = bind(ops.penalties)

    def __call__(self, logits: Tensor, part: Penalties, rows: Rows) -> Tensor:
        out: Tensor = self._op(
            logits, rows.history, rows.slots, rows.lengths, part.prompt_len, part.repetition, part.presence, part.frequency
        )
        return out
