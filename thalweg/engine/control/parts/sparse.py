"""Tokens of a step with sparse attention, in models that limit the tokens attended to."""

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
        """Valid until the next sequence grows beyond the limit."""
        before = work.context[work.context < self._top]
        lasts = self._top - int(before.max()) if before.size else FOREVER
        return Sparse.of(work.context, work.query, self._top), lasts
