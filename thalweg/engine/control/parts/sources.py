"""Sources of cross attention, of sequences that have just got their slot: the encoder reads each once per stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, Setup, StepRows
from thalweg.engine.control.request import Request
from thalweg.hal.parts.sources import Sources


class SourcesBuilder(Builder):
    part = Sources

    def __init__(self, setup: Setup) -> None:
        self._unread: dict[int, np.ndarray] = {}
        """By slot."""

    def applies(self, request: Request) -> bool:
        return any(item.is_source for item in request.inputs)

    def enter(self, slot: int, request: Request) -> None:
        self._unread[slot] = next(item.data[0] for item in request.inputs if item.is_source)

    def leave(self, slot: int) -> None:
        self._unread.pop(slot, None)

    def is_active(self, work: StepRows) -> bool:
        return bool(self._unread and work.chunks) and super().is_active(work)

    def build(self, work: StepRows) -> tuple[Sources | None, int]:
        """Does not depend on cached prompt tokens: blocks of cross attention are never found in the prefix cache."""
        rows, found = [], []
        for row, chunk in enumerate(work.chunks, work.chunks_from):
            features = self._unread.pop(chunk.slot, None)
            if features is not None:
                rows.append(row)
                found.append(features)
        return (Sources(np.array(rows, np.int32), _stack(found)) if rows else None), FOREVER


def _stack(found: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays with two dimensions as one with three. Smaller ones are filled up with zeros."""
    shape = np.max([each.shape for each in found], 0)
    return np.stack([np.pad(each, [(0, more) for more in shape - each.shape]) for each in found])
