"""Masks of forbidden tokens."""

from __future__ import annotations

from torch import Tensor

from thalweg.hal import ops
from thalweg.hal.parts.mask import Mask
from thalweg.models.logits.change import LogitRows, OpBinder


class MaskProcessor:
    def __init__(self, bind: OpBinder) -> None:
        self._op = bind(ops.token_mask)

    def __call__(self, logits: Tensor, part: Mask, rows: LogitRows) -> Tensor:
        out: Tensor = self._op(logits, part.allowed)
        return out

    def ahead(self, logits: Tensor, part: Mask) -> Tensor:
        out: Tensor = self._op(logits, part.ahead) if part.ahead.shape[0] else logits
        return out
