"""The model's side: the next token of every run that the last tokens have begun before is banned."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.models.logits.change import LogitRows, OpBinder
from thalweg_feature import NoRepeat


class NoRepeatChange:
    def __init__(self, bind: OpBinder) -> None:
        """It runs no op that a device may have a kernel for."""

    def __call__(self, logits: Tensor, part: NoRepeat, rows: LogitRows) -> Tensor:
        history = rows.history.index_select(0, rows.slots).long()  # [S, L]
        size, length, most = part.size.long()[:, None], rows.lengths.long()[:, None], history.shape[1] - 1
        start = torch.arange(most + 1, device=history.device)[None]
        again = (size > 0) & (start + size <= length)  # a whole run lies there
        for j in range(part.level - 1):
            there = history.gather(1, (start + j).clamp(max=most).expand_as(history))
            here = history.gather(1, (length - size + 1 + j).clamp(0, most))
            again = again & ((there == here) | (j >= size - 1))
        vocab = logits.shape[1]
        last = history.gather(1, (start + size - 1).clamp(0, most))
        banned = torch.zeros((logits.shape[0], vocab + 1), dtype=torch.bool, device=logits.device)
        banned = banned.scatter(1, torch.where(again, last, vocab), True)
        return logits.masked_fill(banned[:, :vocab], float("-inf"))
