"""The reach of tokens that attend to each other in both directions."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, StepRows
from thalweg.engine.control.request import Request
from thalweg.hal.parts.spans import Spans


class SpansBuilder(Builder):
    part = Spans

    def applies(self, request: Request) -> bool:
        return any(item.bidirectional for item in request.inputs)

    def is_active(self, work: StepRows) -> bool:
        return bool(work.chunks) and super().is_active(work)

    def build(self, work: StepRows) -> tuple[Spans | None, int]:
        last = np.zeros(int(work.query.sum()), np.int32)
        for row, chunk in enumerate(work.chunks, work.chunks_from):
            request = work.state.requests[chunk.slot]
            begin, first = int(work.context[row]), work.first_token(row)
            for item in () if request is None else request.inputs:
                if not item.bidirectional:
                    continue
                a, b = item.span
                low, high = max(a, begin), min(b, begin + chunk.take)
                if low < high:
                    last[first + low - begin : first + high - begin] = b - 1
        return (Spans(last[:, None]) if last.any() else None), FOREVER
