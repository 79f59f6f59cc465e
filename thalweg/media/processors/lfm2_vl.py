"""LFM2-VL: images keep their ratio between two numbers of vectors. Larger ones are cut into squares, each with its row and
column before it, and shown whole last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError
from thalweg.media.processors.base import (
    BILINEAR,
    FILE,
    HALF,
    ImageProcessor,
    Size,
    View,
    check_shape,
    closest,
    cut,
    outer,
    settings,
    token,
    vision,
)

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs


class Lfm2Vl(ImageProcessor, frozen=True, kw_only=True):
    merge: int
    side: int
    """Rows of the table of places, and columns."""
    fewest: int
    most: int
    """Range of the number of vectors of an untiled image."""
    over: float
    """Images of so many times the most are cut."""
    tile: int
    """Pixels of a square's edge."""
    tiles: tuple[int, int]
    """Squares, at least and at most."""
    whole: bool
    """A tiled image is also shown whole."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        whole = View((self._fit_size(width, height),))
        columns, rows = self._tiling(width, height)
        if columns * rows == 1:
            return (whole,)
        fitted = (columns * self.tile, rows * self.tile)
        return (*cut((fitted,), columns, rows, self.tile), *([whole] if self.whole else []))

    def _fit_size(self, width: int, height: int) -> Size:
        unit = self.patch * self.merge
        wide, high = (max(unit, round(edge / unit) * unit) for edge in (width, height))
        least, most = self.fewest * unit**2, self.most * unit**2
        if wide * high > most:
            less = math.sqrt(height * width / most)
            return max(unit, math.floor(width / less / unit) * unit), max(unit, math.floor(height / less / unit) * unit)
        if wide * high < least:
            more = math.sqrt(least / (height * width))
            return math.ceil(width * more / unit) * unit, math.ceil(height * more / unit) * unit
        return wide, high

    def _tiling(self, width: int, height: int) -> Size:
        unit = self.patch * self.merge
        wide, high = (max(self.patch, round(edge / unit) * unit) for edge in (width, height))
        if self.tiles == (1, 1) or wide * high <= self.most * unit**2 * self.over:
            return 1, 1
        return closest(width, height, self.tile, *self.tiles)

    def count(self, size: Size) -> int:
        columns, rows = self._tiling(*size)
        cut = columns * rows * self._each((self.tile, self.tile)) if columns * rows > 1 else 0
        return cut + (self._each(self._fit_size(*size)) if self.whole or not cut else 0)

    def _each(self, size: Size) -> int:
        return size[0] * size[1] // (self.patch * self.merge) ** 2

    def text(self, size: Size, token: str) -> str:
        (columns, rows), whole = self._tiling(*size), token * self._each(self._fit_size(*size))
        if columns * rows == 1:
            return f"<|image_start|>{whole}<|image_end|>"
        each = token * self._each((self.tile, self.tile))
        cut = "".join(f"<|img_row_{y + 1}_col_{x + 1}|>{each}" for y in range(rows) for x in range(columns))
        return f"<|image_start|>{cut}{'<|img_thumbnail|>' + whole if self.whole else ''}<|image_end|>"

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import joined_patches, patches

        return joined_patches.concat_views([patches.interpolated_patches(self, view, self.merge, self.side) for view in views])


def lfm2_vl(config: Config, options: Config) -> Lfm2Vl:
    seen, around = vision(config), outer(config)
    patch = integer(seen, "patch_size", high=1 << 10, default=16)
    merge = integer(around, "downsample_factor", high=16, default=2)
    tile = integer(options, "tile_size", high=1 << 14, default=512, where=FILE)
    if integer(options, "encoder_patch_size", default=patch, where=FILE) != patch or tile % (patch * merge):
        raise CheckpointError(f"{FILE}: encoder_patch_size, tile_size: do not fit the encoder's patches of {patch} pixels")
    most = integer(options, "max_tiles", high=64, default=10, where=FILE)
    tiles = (integer(options, "min_tiles", high=most, default=min(2, most), where=FILE), most)
    return Lfm2Vl(
        token=token(config, 396), patch=patch, merge=merge, tile=tile,
        side=math.isqrt(integer(seen, "num_patches", high=1 << 20, default=256)),
        fewest=integer(options, "min_image_tokens", high=1 << 16, default=64, where=FILE),
        most=integer(options, "max_image_tokens", high=1 << 16, default=256, where=FILE),
        over=real(options, "max_pixels_tolerance", 0.01, 1e6, default=2.0, where=FILE),
        tiles=tiles if flag(options, "do_image_splitting", True) else (1, 1), whole=flag(options, "use_thumbnail", True),
        **settings(options, mean=HALF, std=HALF, resample=BILINEAR),
    )  # fmt: skip
