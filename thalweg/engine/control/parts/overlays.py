"""Vectors laid over placeholder tokens of prompts: those that requests bring, and those that are made of their media."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, Setup, Work
from thalweg.engine.control.request import Request
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.overlays import Overlays


class OverlaysBuilder(Builder):
    part = Overlays

    def __init__(self, setup: Setup) -> None:
        self._encodings = setup.encodings

    def asked(self, p: TokenSampling) -> bool:
        return p.overlay is not None or bool(p.media)

    def gates(self, p: TokenSampling) -> bool:
        return bool(p.media)

    def ready(self, request: Request, begin: int, end: int) -> int:
        """Up to the first item without vectors. Those of all later items of the prompt are begun too, to be made together."""
        assert self._encodings is not None, "refused before"
        behind = (item for item in request.sampling.media if item.positions[-1] >= begin)
        missing = [item for item in behind if self._encodings.find(item) is None]
        return end - begin if not missing else min(end - begin, max(0, int(missing[0].positions[0]) - begin))

    def wanted(self, work: Work) -> bool:
        return bool(work.chunks) and super().wanted(work)

    def build(self, work: Work) -> tuple[Overlays | None, int]:
        """Of the chunks of this step: what the cache held, and tokens that were drawn, are not computed from vectors."""
        pick = np.full(int(work.query.sum()), -1, np.int32)
        found: list[np.ndarray] = []
        size = 0
        for row, chunk in enumerate(work.chunks, work.chunks_from):
            request = work.state.requests[chunk.slot]
            if request is None:
                continue
            begin = int(work.context[row])
            for positions, vectors in self._laid(request.sampling, begin, begin + chunk.take):
                pick[work.first_token(row) + positions - begin] = np.arange(size, size + len(vectors), dtype=np.int32)
                found.append(vectors)
                size += len(vectors)
        return (Overlays(pick, _joined(found)) if found else None), FOREVER

    def _laid(self, p: TokenSampling, begin: int, end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Positions of [begin, end) and the vectors for them."""
        if p.overlay is not None:
            first, last = np.searchsorted(p.overlay.positions, (begin, end))
            if first < last:
                yield p.overlay.positions[first:last], p.overlay.vectors[first:last]
        for item in p.media:
            first, last = np.searchsorted(item.positions, (begin, end))
            if first < last:
                vectors = None if self._encodings is None else self._encodings.find(item)
                assert vectors is not None, "`ready` said that they are there"
                yield item.positions[first:last], vectors[first:last]


def _joined(found: list[np.ndarray]) -> np.ndarray:
    """Those of images may say something of later layers, too, in further columns. Others say nothing of them."""
    width = max(v.shape[1] for v in found)
    return np.concatenate([np.pad(v, ((0, 0), (0, width - v.shape[1]))) if v.shape[1] < width else v for v in found])
