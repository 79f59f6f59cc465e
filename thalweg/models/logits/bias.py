"""Values added to logits."""

from __future__ import annotations

from torch import Tensor

from thalweg.hal import ops
from thalweg.hal.parts.bias import Bias
from thalweg.models.logits.change import LogitRows, OpBinder


class BiasProcessor:
    def __init__(self, bind: OpBinder) -> None:
        self._op = bind(ops.logit_bias)

    def __call__(self, logits: Tensor, part: Bias, rows: LogitRows) -> Tensor:
        out: Tensor = self._op(logits, rows.locate(part.row), part.token, part.value)
        return out
