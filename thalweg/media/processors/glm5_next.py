"""GLM-5 Next: images keep their ratio between two numbers of vectors. Resized to whole pixels, they are filled up with black to
whole vectors. Positions have one axis, because the model rotates none."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from thalweg.checkpoint.config import BESIDE, Config, integer
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import FILE, Size, View, check_shape, outer, token
from thalweg.media.processors.qwen_vl import Glm4v, glm_ocr


class Glm5Next(Glm4v, frozen=True, kw_only=True):
    """`least` and `most` are vectors."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        wide, high = self.fit(width, height)
        scale = min(high / height, wide / width)
        if width * height >= self.least * self.unit**2:
            scale = min(1.0, scale)
        inside = (max(1, min(wide, math.floor(width * scale))), max(1, min(high, math.floor(height * scale))))
        return (View((inside,), (0, 0, wide, high)),)

    @property
    def unit(self) -> int:
        """Pixels along an edge of a vector."""
        return self.patch * self.merge

    def fit(self, width: int, height: int) -> Size:
        """Pixels of whole vectors, as many as are allowed."""
        unit = self.unit

        def align(*size: float) -> Size:
            wide, high = (math.ceil(edge / unit) * unit for edge in size)
            return wide, high

        found, least, most = align(width, height), self.least * unit**2, self.most * unit**2
        if math.prod(found) < least:
            scale = math.sqrt(least / (width * height))
            found = align(max(1, math.ceil(width * scale)), max(1, math.ceil(height * scale)))
        if math.prod(found) <= most:
            return found
        found, low, high = (unit, unit), 1, height
        while low <= high:
            tall = (low + high) // 2
            tried = align(max(1, math.floor(width * tall / height)), tall)
            if math.prod(tried) <= most:
                found, low = tried, tall + 1
            else:
                high = tall - 1
        return found

    def grid(self, size: Size) -> None:
        return None


def glm5_next(config: Config, options: Config) -> Glm5Next:
    around = {**outer(config), "image_token_id": token(config, 154_854)}
    result = glm_ocr({**config, BESIDE: around}, {**options, "size": None})
    factor = integer(options, "patch_expand_factor", high=16, default=1, where=FILE)
    if factor != 1:
        raise UnsupportedModelError(f"{FILE}: patch_expand_factor: only 1 is supported, not {factor}")
    limits: dict[str, Any] = {
        "least": integer(options, "min_image_tokens", default=16, where=FILE),
        "most": integer(options, "max_image_tokens", default=8000, where=FILE),
    }
    return Glm5Next(**{**msgspec.structs.asdict(result), **limits})
