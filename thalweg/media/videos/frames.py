"""Frames that differ from images of the same family: in their size, or in how many vectors they have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.media.processors.base import ImageProcessor, Size, View, check_shape
from thalweg.media.processors.cosmos3 import Cosmos3Edge
from thalweg.media.processors.lfm3_vl import Lfm3
from thalweg.media.processors.nemotron_vl import NemotronOmni
from thalweg.media.processors.qwen_vl import Glm4v, QwenVL

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs


class QwenFrame(ImageProcessor, frozen=True, kw_only=True):
    """Qwen3-VL, GLM-4V and Cosmos 3 Edge: limits of pixels are those of all frames together."""

    image: QwenVL | Glm4v | Cosmos3Edge | Lfm3
    """Settings of an image, with the limits of a video."""
    shown: int
    """Frames of the video."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        p, shown = self.image, self.shown
        unit = p.patch * p.merge
        if min(width, height) < unit:
            more = max(unit / height, unit / width)
            width, height = int(width * more), int(height * more)
        check_shape(width, height)
        wide, high = (round(edge / unit) * unit for edge in (width, height))
        whole = round(shown / p.frames) * p.frames * wide * high
        if whole > p.most:
            less = math.sqrt(shown * height * width / p.most)
            wide, high = (max(unit, math.floor(edge / less / unit) * unit) for edge in (width, height))
        elif whole < p.least:
            more = math.sqrt(p.least / (shown * height * width))
            wide, high = (math.ceil(edge * more / unit) * unit for edge in (width, height))
        return (View(((wide, high),)),)

    def grid(self, size: Size) -> Size | None:
        return None if isinstance(self.image, Lfm3) else self._grid(size)

    def _grid(self, size: Size) -> Size:
        width, height = self.first_view_size(size)
        unit = self.image.patch * self.image.merge
        return width // unit, height // unit

    def count(self, size: Size) -> int:
        columns, rows = self._grid(size)
        return rows * columns

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        return self.image.preprocess(views, size)


class LlavaFrame(ImageProcessor, frozen=True, kw_only=True):
    """LLaVA-OneVision: one square, whose vectors are halved along both edges by bilinear interpolation."""

    side: int
    """Pixels of the square."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        return (View(((self.side, self.side),)),)

    def count(self, size: Size) -> int:
        return math.ceil(self.side // self.patch / 2) ** 2

    def pool(self, views: Sequence[np.ndarray], last: bool) -> PatchInputs:
        """last: the learned vector of an end of a row follows."""
        from thalweg.media import anyres, patches

        result = patches.square(self, views, False, False)
        result.mix, result.part = anyres.halve(self.side // self.patch, last)
        return result


class NemotronFrame(NemotronOmni, frozen=True, kw_only=True):
    """Nemotron 3 Omni: the ratio of a frame, near a number of patches."""

    target: int
    """Patches of a frame."""
    square: bool

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        if self.square:
            side = max(self.merge, int(math.sqrt(self.target)) // self.merge * self.merge)
            return (View(((side * self.patch, side * self.patch),)),)
        ratio = width / height
        columns, rows = (max(round(math.sqrt(n)), 1) for n in (self.target * ratio, self.target / ratio))
        up = tuple(n + -n % self.merge for n in (columns, rows))
        down = tuple(max(self.merge, n - n % self.merge) for n in (columns, rows))
        wide, high = up if up[0] * up[1] <= self.target else down
        return (View(((wide * self.patch, high * self.patch),)),)


def stack(image: QwenVL | Glm4v | Cosmos3Edge | Lfm3, shown: int) -> QwenFrame:
    shared = {name: getattr(image, name) for name in ImageProcessor.__struct_fields__}
    return QwenFrame(**shared, image=image, shown=shown)
