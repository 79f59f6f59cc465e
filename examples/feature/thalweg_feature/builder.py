"""The control plane's side: the size of each sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.engine.control.parts.builder import PerSequence
from thalweg.engine.control.request import Request
from thalweg.engine.messages import TokenSampling
from thalweg_feature import NAME, NoRepeat


class NoRepeatBuilder(PerSequence):
    part = NoRepeat
    looks_back = True

    def is_enabled(self, p: TokenSampling) -> bool:
        return bool(p.extra.get(NAME))

    def row(self, request: Request) -> Mapping[str, Any]:
        return {"size": request.sampling.extra[NAME]}

    def level(self, part: NoRepeat) -> int:
        return int(part.size.max())
