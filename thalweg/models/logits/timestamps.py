"""Times in transcripts, by the rules that Whisper's authors decode with (Radford et al. 2022, section 4.5)."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.hal.parts.timestamps import Timestamps
from thalweg.models.logits.change import LogitRows, OpBinder

NEVER = float("-inf")


class TimestampsProcessor:
    """A transcript begins with a time. After text comes a time, after that the time at which the next piece begins, or the
    end. Times never fall. Where all times together are more probable than any text, a time is drawn."""

    def __init__(self, bind: OpBinder) -> None:
        """It is a few operations on rows that only transcripts have: torch's own."""

    def __call__(self, logits: Tensor, part: Timestamps, rows: LogitRows) -> Tensor:
        first, end, latest, prompt_len = map(rows.spread, (part.begin, part.end, part.latest, part.prompt_len))
        begin, result = first[:, None], (rows.lengths - prompt_len)[:, None]
        history = rows.history.index_select(0, rows.slots)
        last, before = (history.gather(1, (rows.lengths - ago).clamp(min=0)[:, None].long()) for ago in (1, 2))
        closes = (result >= 1) & (last >= begin)
        opened = (result < 2) | (before >= begin)
        at = torch.arange(history.shape[1], device=history.device)[None]
        output = (at >= prompt_len[:, None]) & (at < rows.lengths[:, None]) & (history >= begin)
        latest_entry = torch.where(output, history, -1).amax(1, keepdim=True)
        # A piece may begin when the one before it ended, and does not end when it began.
        least = torch.where(closes & ~opened, latest_entry, latest_entry + 1)
        ids = torch.arange(logits.shape[1], device=logits.device, dtype=torch.int32)[None]
        time = ids >= begin
        never = (
            (ids == begin - 1) | (closes & opened & time) | (closes & ~opened & (ids < end[:, None])) | (time & (ids < least))
        )
        never = never | ((result == 0) & (~time | (ids > begin + latest[:, None])))
        left = torch.where(never, NEVER, logits)
        times = torch.logsumexp(torch.where(time, left, NEVER), 1, keepdim=True)
        texts = torch.where(time, NEVER, left).amax(1, keepdim=True)
        never = never | (~time & (times > texts))
        return torch.where((begin >= 0) & never, NEVER, logits)
