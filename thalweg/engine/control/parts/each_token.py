"""Prompt tokens with results per token, as chunks compute them."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, ScoredRows, StepRows
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.each_token import EachToken


class EachTokenBuilder(Builder):
    part = EachToken

    def is_enabled(self, p: TokenSampling) -> bool:
        return p.each_token

    def is_active(self, work: StepRows) -> bool:
        return bool(work.chunks) and super().is_active(work)

    def build(self, work: StepRows) -> tuple[EachToken | None, int]:
        """Advances the scheduled progress of these requests. `Request.scored` counts from 1: the result of the token at
        position p is sent where it is above p."""
        rows, size = [], 0
        for row, chunk in enumerate(work.chunks, work.chunks_from):
            request = work.state.requests[chunk.slot]
            if request is None or not request.sampling.each_token:
                continue
            begin = int(work.context[row])
            first, end = max(begin, request.scored_scheduled - 1), min(begin + chunk.take, request.prompt_len)
            if first >= end:
                continue
            rows.append(np.arange(first, end, dtype=np.int32) + np.int32(work.first_token(row) - begin))
            work.scored.append(ScoredRows(request, int(work.state.serial[chunk.slot]), first, size, size + end - first))
            request.scored_scheduled = end + 1
            size += end - first
        return (EachToken(np.concatenate(rows)) if rows else None), FOREVER
