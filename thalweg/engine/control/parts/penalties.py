"""Repetition, presence and frequency penalties, by sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.engine.control.parts.builder import PerSequence
from thalweg.engine.control.request import Request
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.penalties import Penalties


class PenaltiesBuilder(PerSequence):
    part = Penalties
    looks_back = True

    def is_enabled(self, p: TokenSampling) -> bool:
        return p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0

    def row(self, request: Request) -> Mapping[str, Any]:
        p = request.sampling
        return {
            "repetition": p.repetition_penalty,
            "presence": p.presence_penalty,
            "frequency": p.frequency_penalty,
            "prompt_len": request.prompt_len,
        }
