"""Bad words of several tokens."""

from __future__ import annotations

from torch import Tensor

from thalweg.hal import ops
from thalweg.hal.parts.bad_words import BadWords
from thalweg.models.logits.change import LogitRows, OpBinder


class BadWordsProcessor:
    def __init__(self, bind: OpBinder) -> None:
        self._op = bind(ops.bad_words)

    def __call__(self, logits: Tensor, part: BadWords, rows: LogitRows) -> Tensor:
        out: Tensor = self._op(logits, rows.history, rows.slots, rows.lengths, rows.locate(part.row), part.words)
        return out
