"""The adapter of each sequence."""

from __future__ import annotations

from thalweg.engine.control.parts.builder import FOREVER, Builder, Setup, StepRows
from thalweg.engine.control.request import Request
from thalweg.hal.parts.adapters import Adapters


class AdaptersBuilder(Builder):
    part = Adapters

    def __init__(self, setup: Setup) -> None:
        self._slots = setup.adapters

    def applies(self, request: Request) -> bool:
        return bool(request.adapter)

    def enter(self, slot: int, request: Request) -> None:
        assert self._slots is not None, "refused before"
        self._slots.enter(slot, request)

    def leave(self, slot: int) -> None:
        assert self._slots is not None, "it entered"
        self._slots.leave(slot)

    def build(self, work: StepRows) -> tuple[Adapters | None, int]:
        """A sequence keeps its adapter's slot while it runs."""
        assert self._slots is not None, "a sequence entered"
        slots = self._slots.of_sequence[work.slots]
        return Adapters(slots, level=int(self._slots.levels[slots].max())), FOREVER
