"""GOT-OCR 2 and DeepSeek-OCR 2: square views, encoded by SAM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import (
    FILE,
    HALF,
    Size,
    View,
    check_shape,
    closest,
    cut,
    edge,
    only,
    read_size,
    settings,
    token,
    vision,
)
from thalweg.media.processors.tiles import MEAN, STD, TiledImages

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

SHRUNK = 4
"""Patches along each edge of one vector."""


class GotOcr(TiledImages, frozen=True, kw_only=True):
    """One square, or tiles. The prompt has tokens around an image."""

    classes: bool = False
    separate: bool = True

    def text(self, size: Size, token: str) -> str:
        return token * self.count(size)

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.square(self, views, False, False)


class DeepseekOcr(GotOcr, frozen=True, kw_only=True):
    """Tiles of images larger than a tile, then the whole image on a larger square, filled up with a colour. A learned vector
    stands behind."""

    whole: int
    """Pixels of that square."""
    colour: tuple[int, int, int]

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        scale = self.whole / max(width, height)
        fitted = View(((max(round(width * scale), 1), max(round(height * scale), 1)),))
        if not self.most or max(width, height) <= self.side:
            return (fitted,)
        columns, rows = closest(width, height, self.side, self.least, self.most)
        return (*cut(((self.side * columns, self.side * rows),), columns, rows, self.side), fitted)

    def count(self, size: Size) -> int:
        edge = self.patch * self.merge
        return (len(self.views(*size)) - 1) * (self.side // edge) ** 2 + (self.whole // edge) ** 2 + 1

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        import numpy as np

        *tiles, view = views
        high, wide, _ = view.shape
        top, left = (self.whole - high) // 2, (self.whole - wide) // 2
        square = np.empty((self.whole, self.whole, 3), np.uint8)
        square[:] = self.colour
        square[top : top + high, left : left + wide] = view
        made = super().preprocess([*tiles, square], size)
        made.mix = np.arange(self.count(size), dtype=np.int32)[:, None]
        return made


def got_ocr2(config: Config, said: Config) -> GotOcr:
    seen = vision(config)
    side = edge(seen, "image_size", 1024)
    only(read_size(said, "size", ("height", "width"), {"height": 384, "width": 384}).values(), side)
    most = integer(said, "max_patches", high=64, default=12) if flag(said, "crop_to_patches", False) else 1
    return GotOcr(
        token=token(config, 151_859), patch=edge(seen, "patch_size", 16), side=side, most=most, merge=SHRUNK,
        least=integer(said, "min_patches", high=most, default=1), **settings(said, mean=MEAN, std=STD),
    )  # fmt: skip


def deepseek_ocr2(config: Config, said: Config) -> DeepseekOcr:
    seen = vision(config).get("sam_config") or {}
    whole = edge(seen, "image_size", 1024)
    only(read_size(said, "size", ("height", "width"), {"height": 1024, "width": 1024}).values(), whole)
    if not flag(said, "crop_to_patches", True):
        raise UnsupportedModelError(f"{FILE}: crop_to_patches: false is not supported by this version")
    colour = said.get("background_color", [127, 127, 127])
    if not isinstance(colour, list) or len(colour) != 3 or not all(type(v) is int and 0 <= v < 256 for v in colour):
        raise CheckpointError(f"{FILE}: background_color: must be three numbers from 0 to 255, not {colour!r:.80}")
    most = integer(said, "max_patches", high=64, default=6)
    return DeepseekOcr(
        token=token(config, 128_815), patch=edge(seen, "patch_size", 16), whole=whole, merge=SHRUNK,
        side=integer(said, "tile_size", high=whole, default=768, where=FILE), colour=(colour[0], colour[1], colour[2]),
        least=integer(said, "min_patches", high=most, default=2), most=most, **settings(said, mean=HALF, std=HALF),
    )  # fmt: skip
