"""Granite-Docling: a page is cut into squares by its ratio, each with its row and column before it, and shown whole last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import (
    FILE,
    ImageProcessor,
    Size,
    View,
    check_shape,
    closest,
    cut,
    only,
    read_size,
    settings,
    token,
    vision,
)
from thalweg.media.processors.idefics3 import AROUND, WHOLE

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
LONGEST = 16
"""Tiles along an edge: the tokenizer names no more rows and columns."""


class GraniteDocling(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """Pixels of a tile."""
    merge: int
    least: int
    most: int
    """Tiles of a page. 1: it is not cut."""
    dense_most: int = 0
    """The same of pages that `most` tiles show too small; 0 = none differ."""
    dense_scale: float = 0.0
    """Such pages would be shown below this scale; 0 = at any."""
    dense_ratio: tuple[float, float] = (0.0, 0.0)
    """Their width divided by their height is above the first, and at most the second; 0 = no limit."""

    def _tiling(self, width: int, height: int) -> Size:
        """Columns and rows."""
        most = self._budget(width, height)
        return self._closest(width, height, most) if most > 1 else (1, 1)

    def _closest(self, width: int, height: int, most: int) -> Size:
        return closest(width, height, self.side, self.least, most, LONGEST)

    def _budget(self, width: int, height: int) -> int:
        wider, widest = self.dense_ratio
        ratio = width / height
        if self.most <= 1 or not self.dense_most or (self.dense_scale <= 0 and wider <= 0):
            return self.most
        if (wider > 0 and ratio <= wider) or (0 < widest < ratio):
            return self.most
        if self.dense_scale > 0 and self._closest(width, height, self.most)[0] * self.side / width >= self.dense_scale:
            return self.most
        return self.dense_most

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        columns, rows = self._tiling(width, height)
        tiles = cut(((columns * self.side, rows * self.side),), columns, rows, self.side)
        return tiles if len(tiles) == 1 else (*tiles, View(((self.side, self.side),)))

    @property
    def each(self) -> int:
        """Vectors of a tile."""
        return (self.side // self.patch // self.merge) ** 2

    def count(self, size: Size) -> int:
        return len(self.views(*size)) * self.each

    def text(self, size: Size, token: str) -> str:
        columns, rows = self._tiling(*size)
        each = token * self.each
        lines = [
            "".join(f"{AROUND}<row_{y + 1}_col_{x + 1}>{each}" for x in range(columns)) + "\n" for y in range(rows)
        ]  # fmt: skip
        return "".join(lines) + (f"\n{AROUND}{WHOLE}{each}{AROUND}" if columns * rows > 1 else "")

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.square(self, views, False, False, self.merge)


def granite_docling(config: Config, options: Config) -> GraniteDocling:
    seen = vision(config)
    side = integer(seen, "image_size", default=512)
    only(read_size(options, "size", ("height", "width"), {"height": side, "width": side}).values(), side)
    if flag(options, "fine_route", False):
        raise UnsupportedModelError(f"{FILE}: fine_route: true is not supported by this version; remove it")

    def tiles(key: str, default: int, low: int = 1) -> int:
        return integer(options, key, low=low, high=LONGEST**2, default=default, where=FILE)

    def limit(key: str) -> float:
        return real(options, key, 0, 1e4, default=0.0, where=FILE)

    return GraniteDocling(
        token=token(config, 100_337), patch=integer(seen, "patch_size", default=16), side=side,
        merge=integer(seen, "scale_factor", high=16, default=4), least=tiles("min_patches", 1),
        most=tiles("max_patches", 32) if flag(options, "crop_to_patches", True) else 1,
        dense_most=tiles("dense_max_patches", 0, low=0), dense_scale=limit("dense_max_scale"),
        dense_ratio=(limit("dense_min_aspect"), limit("dense_max_aspect")), **settings(options, mean=MEAN, std=STD),
    )  # fmt: skip
