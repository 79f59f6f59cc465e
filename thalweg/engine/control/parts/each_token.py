"""Prompt tokens with results per token, as chunks compute them."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import Builder, ScoredRows, StepRows
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.each_token import EachToken

NAMES = ("alignment", "states")
"""In `TokenSampling.extra`: the position of the first token whose weights of cross attention, or hidden states, are
returned."""


class EachTokenBuilder(Builder):
    part = EachToken

    def is_enabled(self, p: TokenSampling) -> bool:
        return p.each_token or any(name in p.extra for name in NAMES)

    def build(self, work: StepRows) -> tuple[EachToken | None, int]:
        """Advances the scheduled progress of these requests. `Request.scored` counts from 1: the result of the token at
        position p is sent where it is above p. The last token of a prompt may be computed among the decodes."""
        rows, size = [], 0
        for row, request in work.rows(self.flag):
            extra = request.sampling.extra
            begin, skipped = int(work.context[row]), max(extra.get(name, 0) for name in NAMES)
            first = max(begin, request.scored_scheduled - 1, skipped)
            end = min(begin + int(work.query[row]), request.prompt_len)
            if first >= end:
                continue
            rows.append(np.arange(first, end, dtype=np.int32) + np.int32(work.first_token(row) - begin))
            serial = int(work.state.serial[work.slots[row]])
            work.each.append(ScoredRows(request, serial, first, size, size + end - first))
            request.scored_scheduled = end + 1
            size += end - first
        return (EachToken(np.concatenate(rows)) if rows else None), 1
