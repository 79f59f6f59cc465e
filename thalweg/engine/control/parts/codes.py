"""Codes of frames that were sampled before their sequence was preempted, or by another engine."""

from __future__ import annotations

import numpy as np

from thalweg.engine.control.parts.builder import FOREVER, Builder, StepRows
from thalweg.hal.parts.codes import FrameCodes


class CodesBuilder(Builder):
    part = FrameCodes

    def is_active(self, work: StepRows) -> bool:
        return any(self._find(work, chunk.slot) for chunk in work.chunks)

    @staticmethod
    def _find(work: StepRows, slot: int) -> bool:
        request = work.state.requests[slot]
        return request is not None and bool(request.frames)

    def build(self, work: StepRows) -> tuple[FrameCodes | None, int]:
        """Of every frame known, when a chunk of its sequence is computed."""
        slots, positions, codes = list[int](), list[int](), list[np.ndarray]()
        for chunk in work.chunks:
            request = work.state.requests[chunk.slot]
            for i, frame in enumerate([] if request is None else request.frames):
                assert request is not None
                slots.append(chunk.slot)
                positions.append(request.prompt_len + i)
                codes.append(frame)
        if not codes:
            return None, FOREVER
        return FrameCodes(np.array(slots, np.int32), np.array(positions, np.int32), np.stack(codes)), FOREVER
