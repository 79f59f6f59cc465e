"""Which tokens of a step choose what they read, in models whose attention reads no more than so many."""

from __future__ import annotations

from thalweg.engine.control.parts.builder import FOREVER, Builder, Setup, StepRows
from thalweg.hal.parts.sparse import Sparse


class SparseBuilder(Builder):
    part = Sparse

    def __init__(self, setup: Setup) -> None:
        self._top = setup.top

    def is_active(self, work: StepRows) -> bool:
        return self._top > 0

    def build(self, work: StepRows) -> tuple[Sparse | None, int]:
        """Until the next sequence grows beyond."""
        before = work.context[work.context < self._top]
        lasts = self._top - int(before.max()) if before.size else FOREVER
        return Sparse.of(work.context, work.query, self._top), lasts
