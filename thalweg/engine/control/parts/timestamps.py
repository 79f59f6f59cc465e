"""Times in transcripts, by sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.engine.control.parts.builder import PerSequence
from thalweg.engine.control.request import Request
from thalweg.engine.messages import TokenSampling
from thalweg.hal.parts.timestamps import Timestamps

NAME = "timestamps"


class TimestampsBuilder(PerSequence):
    part = Timestamps
    looks_back = True

    def is_enabled(self, p: TokenSampling) -> bool:
        return NAME in p.extra

    def row(self, request: Request) -> Mapping[str, Any]:
        begin, end, latest = request.sampling.extra[NAME]
        return {"begin": begin, "end": end, "latest": latest, "prompt_len": request.prompt_len}
