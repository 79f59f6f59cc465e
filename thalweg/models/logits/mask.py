"""Masks of forbidden tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.hal import ops
from thalweg.hal.parts.mask import Mask
from thalweg.models.logits.change import LogitRows, OpBinder


class MaskProcessor:
    def __init__(self, bind: OpBinder) -> None:
        self._op = bind(ops.token_mask)

    def __call__(self, logits: Tensor, part: Mask, rows: LogitRows) -> Tensor:
        n, drafts = part.allowed.shape[0], part.ahead.shape[0]
        allowed = torch.cat([part.allowed, part.ahead]) if drafts else part.allowed
        out: Tensor = self._op(logits[: n + drafts], allowed)
        return out if out.shape == logits.shape else torch.cat([out, logits[n:]])
