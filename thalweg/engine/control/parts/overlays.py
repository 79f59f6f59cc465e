"""Vectors of tokens: from requests, or from the encoders of their inputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, Setup, StepRows
from thalweg.engine.control.request import Request
from thalweg.hal.parts.overlays import Overlays


class OverlaysBuilder(Builder):
    part = Overlays

    def __init__(self, setup: Setup) -> None:
        self._encodings = setup.encodings
        self._later: set[int] = set()
        """Slots of sequences whose sampled tokens have vectors too."""

    def applies(self, request: Request) -> bool:
        return any(item.positions.size for item in request.inputs)

    def gates(self, request: Request) -> bool:
        return any(item.is_encoded for item in request.inputs)

    def ready(self, request: Request, begin: int, end: int) -> int:
        """Tokens up to the first item without vectors. All later items of the prompt are queued too, to be encoded together."""
        assert self._encodings is not None, "refused before"
        behind = (item for item in request.inputs if item.is_encoded and item.positions[-1] >= begin)
        missing = [item for item in behind if self._encodings.find(item) is None]
        return end - begin if not missing else min(end - begin, max(0, int(missing[0].positions[0]) - begin))

    def enter(self, slot: int, request: Request) -> None:
        if request.has_later_inputs:
            self._later.add(slot)

    def leave(self, slot: int) -> None:
        self._later.discard(slot)

    def is_active(self, work: StepRows) -> bool:
        return bool(work.chunks or self._later) and super().is_active(work)

    def build(self, work: StepRows) -> tuple[Overlays | None, int]:
        """Overlays of chunks, and of sampled tokens where an input covers them. Cached tokens are not computed again."""
        pick = np.full(int(work.query.sum()), -1, np.int32)
        found: list[np.ndarray] = []
        size, lasts = 0, FOREVER
        chunks = range(work.chunks_from, work.chunks_from + len(work.chunks))
        for row, request in work.rows(self.flag):
            later = request.slot in self._later
            if row not in chunks and not later:
                continue
            lasts = 1 if later else lasts
            begin = int(work.context[row])
            for positions, vectors in self._vectors(request, begin, begin + int(work.query[row])):
                pick[work.first_token(row) + positions - begin] = np.arange(size, size + len(vectors), dtype=np.int32)
                found.append(vectors)
                size += len(vectors)
        return (Overlays(pick, _concat_rows(found)) if found else None), lasts

    def _vectors(self, request: Request, begin: int, end: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Positions of [begin, end) and the vectors for them."""
        for item in request.inputs:
            first, last = np.searchsorted(item.positions, (begin, end))
            if first < last:
                vectors = item.vectors
                if vectors is None and self._encodings is not None:
                    vectors = self._encodings.find(item)
                assert vectors is not None, "`ready` said that they are there"
                yield item.positions[first:last], vectors[first:last]


def _concat_rows(found: list[np.ndarray]) -> np.ndarray:
    """Encoders may add columns for later layers. Rows without them are padded with zeros."""
    width = max(v.shape[1] for v in found)
    return np.concatenate([np.pad(v, ((0, 0), (0, width - v.shape[1]))) if v.shape[1] < width else v for v in found])
