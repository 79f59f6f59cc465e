"""Sounds of sequences that have just got their slot: the encoder hears each once per stay."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, Setup, Work
from thalweg.engine.control.request import Request
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.sounds import Sounds


class SoundsBuilder(Builder):
    part = Sounds

    def __init__(self, setup: Setup) -> None:
        self._unheard: dict[int, np.ndarray] = {}
        """By slot."""

    def asked(self, p: TokenSampling) -> bool:
        return p.sound is not None

    def enter(self, slot: int, request: Request) -> None:
        assert request.sampling.sound is not None
        self._unheard[slot] = request.sampling.sound

    def leave(self, slot: int) -> None:
        self._unheard.pop(slot, None)

    def wanted(self, work: Work) -> bool:
        return bool(self._unheard and work.chunks) and super().wanted(work)

    def build(self, work: Work) -> tuple[Sounds | None, int]:
        """However much of a prompt was found in the cache: what cross attention keeps is never found there."""
        rows, found = [], []
        for row, chunk in enumerate(work.chunks, work.chunks_from):
            mel = self._unheard.pop(chunk.slot, None)
            if mel is not None:
                rows.append(row)
                found.append(mel)
        return (Sounds(np.array(rows, np.int32), np.stack(found)) if rows else None), FOREVER
