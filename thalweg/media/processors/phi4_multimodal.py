"""Phi-4-multimodal: an image is enlarged to fill tiles along one axis, filled up with white along the other, and shown whole in
one more tile. Filled patches are masked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, integer
from thalweg.media.processors.base import (
    BILINEAR,
    FILE,
    HALF,
    ImageProcessor,
    Size,
    View,
    check_shape,
    closest,
    edge,
    only,
    read_size,
    settings,
    vision,
)

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

WHITE = 255
THIN = 10
"""Pixels of the shorter edge after resizing, at least."""


class Phi4Multimodal(ImageProcessor, frozen=True, kw_only=True):
    side: int
    most: int
    """Tiles, without that of the whole image."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        fitted = self._fit((width, height))
        if min(fitted) < THIN:
            raise ValueError(f"is {width} x {height} pixels: too thin for this model")
        return (View((fitted,)),)

    def _tiling(self, size: Size) -> Size:
        """Columns and rows of tiles."""
        columns, rows = (math.ceil(n / self.side) for n in size)
        return (columns, rows) if columns * rows <= self.most else closest(*size, self.side, 1, self.most)

    def _fit(self, size: Size) -> Size:
        (width, height), (columns, rows) = size, self._tiling(size)
        across, down = columns * self.side / width, rows * self.side / height
        return (columns * self.side, int(height * across)) if across < down else (int(width * down), rows * self.side)

    @property
    def each(self) -> int:
        """Vectors along an edge of a tile."""
        return self.side // self.patch // 2

    def _count_shown(self, size: Size) -> Size:
        """Columns and rows of patches that are not filled."""
        columns, rows = ((n * self.side - fitted) // self.patch
                         for n, fitted in zip(self._tiling(size), self._fit(size), strict=True))  # fmt: skip
        across, down = (n * self.side // self.patch for n in self._tiling(size))
        return across - columns, down - rows

    def count(self, size: Size) -> int:
        columns, rows = (math.ceil(n / 2) for n in self._count_shown(size))
        return rows * (columns + 1) + 1 + self.each * (self.each + 1)

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        import numpy as np

        from thalweg.media import patches

        (view,), side, grid = views, self.side, self.side // self.patch
        columns, rows = self._tiling(size)
        canvas = np.full((rows * side, columns * side, 3), WHITE, np.uint8)
        canvas[: view.shape[0], : view.shape[1]] = view
        whole = patches.normalize(canvas, self)
        tiles = whole.reshape(rows, side, columns, side, 3).transpose(0, 2, 1, 3, 4).reshape(-1, side, side, 3)
        result = patches.join_squares(self, [patches.resize_cubic(whole, side), *tiles], False, False, 2)
        result.place, result.share = self._places(size, grid)
        result.mix = self._arrange(size)
        return result

    def _places(self, size: Size, grid: int) -> tuple[np.ndarray, np.ndarray]:
        """(i32[T, 1], f32[T, 1]): the position of each patch of all tiles, and whether it is shown. Positions are relative to
        the shown part of a tile."""
        import numpy as np

        (columns, rows), (across, down) = self._tiling(size), self._count_shown(size)
        places, shares = [np.arange(grid * grid)], [np.ones(grid * grid)]
        for row in range(rows):
            for column in range(columns):
                high, wide = (min(max(n - i * grid, 0), grid) for n, i in ((down, row), (across, column)))
                share = np.zeros((grid, grid))
                share[:high, :wide] = 1
                place = _bucket(high, grid)[:, None] * grid + _bucket(wide, grid)
                places.append((place * (share > 0)).reshape(-1))
                shares.append(share.reshape(-1))
        return np.concatenate(places)[:, None].astype(np.int32), np.concatenate(shares)[:, None].astype(np.float32)

    def _arrange(self, size: Size) -> np.ndarray:
        """i32[count, 1]: the rows of all tiles, a learned vector behind each, another, and the rows of the whole image."""
        import numpy as np

        (columns, rows), each = self._tiling(size), self.each
        last = (1 + columns * rows) * each * each
        across, down = (math.ceil(n / 2) for n in self._count_shown(size))
        grid = np.arange(each * each, last).reshape(rows, columns, each, each).transpose(0, 2, 1, 3)
        tiles = grid.reshape(rows * each, columns * each)[:down, :across]
        parts = (tiles, np.arange(each * each).reshape(each, each))
        local, around = (np.pad(part, ((0, 0), (0, 1)), constant_values=last).reshape(-1) for part in parts)
        return np.concatenate([local, [last + 1], around]).astype(np.int32)[:, None]


def _bucket(shown: int, side: int) -> np.ndarray:
    """The position of each of `side` patches in a row, of which so many are shown. In float32, as torch computes it."""
    import numpy as np

    limits = (np.arange(1, side) / side).astype(np.float32)
    far = np.arange(side, dtype=np.float32) * (np.float32(1) / np.float32(max(shown, 1)))
    result: np.ndarray = np.searchsorted(limits, np.minimum(far, np.float32(1 - 1e-6)), side="right")
    return result


def phi4_multimodal(config: Config, options: Config) -> Phi4Multimodal:
    seen = vision(config)
    side = edge(seen, "image_size", 448)
    only(
        (
            *read_size(options, "size", ("height", "width"), {"height": 448, "width": 448}).values(),
            edge(seen, "crop_size", side),
        ),
        side,
    )
    given = settings(options, mean=HALF, std=HALF)
    return Phi4Multimodal(
        numbered="<|image_{}|>",
        token=integer(seen, "image_token_id", low=0, default=200_010), patch=edge(seen, "patch_size", 14), side=side,
        most=integer(options, "dynamic_hd", high=256, default=36, where=FILE), **{**given, "resample": BILINEAR},
    )  # fmt: skip
