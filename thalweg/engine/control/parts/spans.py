"""How far the tokens of images see."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, Work
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.spans import Spans


class SpansBuilder(Builder):
    part = Spans

    def asked(self, p: TokenSampling) -> bool:
        return bool(p.spans)

    def wanted(self, work: Work) -> bool:
        return bool(work.chunks) and super().wanted(work)

    def build(self, work: Work) -> tuple[Spans | None, int]:
        last = np.zeros(int(work.query.sum()), np.int32)
        for row, chunk in enumerate(work.chunks, work.chunks_from):
            request = work.state.requests[chunk.slot]
            begin, first = int(work.context[row]), work.first_token(row)
            for a, b in () if request is None else request.sampling.spans:
                low, high = max(a, begin), min(b, begin + chunk.take)
                if low < high:
                    last[first + low - begin : first + high - begin] = b - 1
        return (Spans(last[:, None]) if last.any() else None), FOREVER
