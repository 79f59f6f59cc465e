"""Vectors that requests lay over placeholder tokens of their prompts."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, Work
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.overlays import Overlays


class OverlaysBuilder(Builder):
    part = Overlays

    def asked(self, p: TokenSampling) -> bool:
        return p.overlay is not None

    def wanted(self, work: Work) -> bool:
        return bool(work.chunks) and super().wanted(work)

    def build(self, work: Work) -> tuple[Overlays | None, int]:
        """Of the chunks of this step: what the cache held, and tokens that were drawn, are not computed from vectors."""
        pick = np.full(int(work.query.sum()), -1, np.int32)
        vectors, size = [], 0
        for row, chunk in enumerate(work.chunks, work.chunks_from):
            request = work.state.requests[chunk.slot]
            overlay = None if request is None else request.sampling.overlay
            if overlay is None:
                continue
            begin = int(work.context[row])
            first, last = np.searchsorted(overlay.positions, (begin, begin + chunk.take))
            if first == last:
                continue
            at = work.first_token(row) + overlay.positions[first:last] - begin
            pick[at] = np.arange(size, size + last - first, dtype=np.int32)
            vectors.append(overlay.vectors[first:last])
            size += int(last - first)
        return (Overlays(pick, np.concatenate(vectors)) if vectors else None), FOREVER
