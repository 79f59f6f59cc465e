"""Vectors laid over placeholder tokens of prompts: those that requests bring, and those that are made of their images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, Setup, Work
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.overlays import Overlays


class OverlaysBuilder(Builder):
    part = Overlays

    def __init__(self, setup: Setup) -> None:
        self._encode = setup.encode

    def asked(self, p: TokenSampling) -> bool:
        return p.overlay is not None or bool(p.media)

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
        """Positions of [begin, end) and the vectors for them. An image is encoded when its first chunk is computed."""
        if p.overlay is not None:
            first, last = np.searchsorted(p.overlay.positions, (begin, end))
            if first < last:
                yield p.overlay.positions[first:last], p.overlay.vectors[first:last]
        for item in p.media:
            first, last = np.searchsorted(item.positions, (begin, end))
            if first < last:
                assert self._encode is not None, "refused before"
                yield item.positions[first:last], self._encode(item)[first:last]


def _joined(found: list[np.ndarray]) -> np.ndarray:
    """Those of images may say something of later layers, too, in further columns. Others say nothing of them."""
    width = max(v.shape[1] for v in found)
    return np.concatenate([np.pad(v, ((0, 0), (0, width - v.shape[1]))) if v.shape[1] < width else v for v in found])
