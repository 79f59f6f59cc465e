"""Phi-3-vision: an image is enlarged to as many squares as fit, filled up with white, and shown whole in one more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, integer
from thalweg.media.processors.base import BILINEAR, FILE, ImageProcessor, Size, View, check_shape, settings, token, vision
from thalweg.media.processors.tiles import MEAN, STD

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

MERGE = 2
"""Patches along each edge of one vector."""
WHITE = 255


class Phi3V(ImageProcessor, frozen=True, kw_only=True):
    side: int
    most: int
    """Squares."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        """The longer edge is resized first, as in the authors' code, which turns upright images."""
        check_shape(width, height)
        long, short = self._fit(width, height)
        return (View(((long, short),)) if width >= height else View(((width, long), (short, long))),)

    def _fit(self, width: int, height: int) -> Size:
        """The longer and the shorter edge."""
        ratio, scale = max(width, height) / min(width, height), 1
        while (scale + 1) * math.ceil((scale + 1) / ratio) <= self.most:
            scale += 1
        return scale * self.side, int(scale * self.side / ratio)

    def _tiling(self, size: Size) -> Size:
        """Columns and rows of squares."""
        long, short = self._fit(*size)
        more, less = long // self.side, math.ceil(short / self.side)
        return (more, less) if size[0] >= size[1] else (less, more)

    @property
    def each(self) -> int:
        """Vectors along an edge of a square."""
        return self.side // self.patch // MERGE

    def count(self, size: Size) -> int:
        columns, rows = self._tiling(size)
        return rows * self.each * (columns * self.each + 1) + 1 + self.each * (self.each + 1)

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        import numpy as np

        from thalweg.media import patches

        (view,), side, each = views, self.side, self.each
        columns, rows = self._tiling(size)
        high, wide, _ = view.shape
        top, left = (rows * side - high) // 2, (columns * side - wide) // 2
        canvas = np.full((rows * side, columns * side, 3), WHITE, np.uint8)
        canvas[top : top + high, left : left + wide] = view
        whole = patches.normalize(canvas, self)
        tiles = whole.reshape(rows, side, columns, side, 3).transpose(0, 2, 1, 3, 4).reshape(-1, side, side, 3)
        result = patches.join_squares(self, [*tiles, patches.resize_cubic(whole, side)], True, False, MERGE)
        cut = len(tiles) * each * each
        line = cut + each * each
        grid = np.arange(cut).reshape(rows, columns, each, each).transpose(0, 2, 1, 3).reshape(rows * each, columns * each)
        parts = (grid, np.arange(cut, line).reshape(each, each))
        local, around = (np.pad(part, ((0, 0), (0, 1)), constant_values=line).reshape(-1) for part in parts)
        result.mix = np.concatenate([local, [line + 1], around]).astype(np.int32)[:, None]
        return result


def phi3_v(config: Config, options: Config) -> Phi3V:
    seen = vision(config)
    return Phi3V(
        token=token(config, 32_044), patch=integer(seen, "patch_size", default=14),
        side=integer(seen, "image_size", default=336), most=integer(options, "num_crops", high=64, default=1, where=FILE),
        numbered="<|image_{}|>", **settings(options, mean=MEAN, std=STD, resample=BILINEAR),
    )  # fmt: skip
