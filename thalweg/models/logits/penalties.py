"""Repetition, presence and frequency penalties."""

from __future__ import annotations

from torch import Tensor

from thalweg.hal import ops
from thalweg.hal.parts.penalties import Penalties
from thalweg.models.logits.change import LogitRows, OpBinder


class PenaltiesProcessor:
    def __init__(self, bind: OpBinder) -> None:
        self._op = bind(ops.penalties)

    def __call__(self, logits: Tensor, part: Penalties, rows: LogitRows) -> Tensor:
        values = (rows.spread(a) for a in (part.prompt_len, part.repetition, part.presence, part.frequency))
        out: Tensor = self._op(logits, rows.history, rows.slots, rows.lengths, *values)
        return out
