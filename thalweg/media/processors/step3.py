"""Step 3.7: squares of an image, cut at a window that depends on its shape, before the whole image on a larger square."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, integer
from thalweg.media.processors.base import (
    BILINEAR,
    FILE,
    ImageProcessor,
    Size,
    View,
    check_shape,
    edge,
    only,
    read_size,
    settings,
    token,
    vision,
)
from thalweg.media.processors.tiles import MEAN, STD

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

THIN, FLAT = 32, 4
"""An image with a shorter edge below THIN pixels, and edges of a ratio above FLAT, is filled up to a square with black."""


class Step3(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """Pixels of the square of the whole image."""
    tile: int
    """Of the others."""
    longest: int
    """Larger images are reduced to edges of so many pixels first."""
    table: int
    """Rows of the table of places, and columns."""
    head_dim: int

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        (width, height), (wide, high), window, square = self._plan(width, height)
        part = (0, 0, square, square) if square else None
        whole = View(((width, height), (self.side, self.side)), part=part)
        if not window:
            return (whole,)
        boxes = [
            (x, y, min(x + window, wide), min(y + window, high)) for y in range(0, high, window) for x in range(0, wide, window)
        ]
        return (*(View(((wide, high),), box, part, (self.tile, self.tile)) for box in boxes), whole)

    def _plan(self, width: int, height: int) -> tuple[Size, Size, int, int]:
        """(size of the whole image, size of the image that is cut, pixels of the window or 0 for no cut, pixels of the black
        square or 0 for none)."""
        square = max(width, height) if min(width, height) < THIN and max(width, height) > FLAT * min(width, height) else 0
        width, height = (square, square) if square else (width, height)
        if max(width, height) > self.longest:
            less = self.longest / max(width, height)
            width, height = int(width * less), int(height * less)
        short, long = min(width, height), max(width, height)
        if long <= self.side:
            window = short if long / short > 1.5 else 0
        else:
            window = min(short, self.tile) if long / short > FLAT else self.tile
        if not window:
            return (width, height), (width, height), 0, square
        wide, high = (
            window * (size // window + (size % window > 0.2 * window)) if size >= window else size for size in (width, height)
        )
        return (width, height), (wide, high), window, square

    def _each(self, side: int) -> int:
        """Vectors of a square: its edge is halved twice, and rounded up."""
        halved = -(-(side // self.patch) // 2)
        return (-(-halved // 2)) ** 2

    def count(self, size: Size) -> int:
        return (len(self.views(*size)) - 1) * self._each(self.tile) + self._each(self.side)

    def text(self, size: Size, token: str) -> str:
        _, (wide, _), window, _ = self._plan(*size)
        tiles, columns = len(self.views(*size)) - 1, -(-wide // window) if window else 0
        each = f"<patch_start>{token * self._each(self.tile)}<patch_end>"
        lines = [each * columns] * (tiles // columns if columns else 0)
        return "<patch_newline>".join(lines) + f"<im_start>{token * self._each(self.side)}<im_end>"

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import joined_patches, patches

        return joined_patches.concat_views([patches.convolved_patches(self, view) for view in views])


def step3p7(config: Config, options: Config) -> Step3:
    seen = vision(config)
    side, patch = edge(seen, "image_size", 728), integer(seen, "patch_size", high=1 << 10, default=14)
    only(read_size(options, "size", ("height", "width"), {"height": side, "width": side}).values(), side)
    heads = integer(seen, "num_attention_heads", default=integer(seen, "heads", default=16))
    return Step3(
        token=token(config, 151_679), patch=patch, side=side, table=side // patch,
        tile=integer(options, "patch_size", high=1 << 14, default=504, where=FILE),
        longest=integer(options, "max_image_size", high=1 << 14, default=3024, where=FILE),
        head_dim=integer(seen, "hidden_size", default=integer(seen, "width", default=1536)) // heads,
        **settings(options, mean=MEAN, std=STD, resample=BILINEAR),
    )  # fmt: skip
