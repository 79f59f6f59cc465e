"""Texts to be spoken, of sequences that have just got their slot: the state keeps them."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, Setup, StepRows
from thalweg.engine.control.request import Request
from thalweg.hal.parts.spoken import SpokenTokens


class SpokenBuilder(Builder):
    part = SpokenTokens

    def __init__(self, setup: Setup) -> None:
        self._unread: dict[int, np.ndarray] = {}
        """By slot."""
        self._longest = setup.max_len

    def applies(self, request: Request) -> bool:
        return any(item.spoken is not None for item in request.inputs)

    def enter(self, slot: int, request: Request) -> None:
        self._unread[slot] = next(item.spoken for item in request.inputs if item.spoken is not None)[: self._longest]

    def leave(self, slot: int) -> None:
        self._unread.pop(slot, None)

    def is_active(self, work: StepRows) -> bool:
        return bool(self._unread and work.chunks) and super().is_active(work)

    def build(self, work: StepRows) -> tuple[SpokenTokens | None, int]:
        found = [(chunk.slot, self._unread.pop(chunk.slot)) for chunk in work.chunks if chunk.slot in self._unread]
        if not found:
            return None, FOREVER
        slots, texts = zip(*found, strict=True)
        sizes = [text.size for text in texts]
        return SpokenTokens(
            np.array(slots, np.int32), np.repeat(np.array(slots, np.int32), sizes),
            np.concatenate([np.arange(n, dtype=np.int32) for n in sizes]), np.concatenate(texts).astype(np.int32),
        ), FOREVER  # fmt: skip
