"""GOT-OCR 2 and DeepSeek-OCR 2: square views, encoded by SAM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from thalweg.checkpoint.config import BESIDE, Config, flag, integer, section
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
    outer,
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
        fitted = View((self.fit(width, height),))
        if not self.most or max(width, height) <= self.side:
            return (fitted,)
        columns, rows = closest(width, height, self.side, self.least, self.most)
        return (*cut(((self.side * columns, self.side * rows),), columns, rows, self.side), fitted)

    def fit(self, width: int, height: int) -> Size:
        """The size of an image on the square."""
        scale = self.whole / max(width, height)
        return max(round(width * scale), 1), max(round(height * scale), 1)

    def offset(self, space: int) -> int:
        """Of an image on the square, with so much space along an axis."""
        return space // 2

    def arrange(self, size: Size) -> np.ndarray:
        """i32[count]: the vectors of placeholders, with the learned ones numbered behind those of views."""
        import numpy as np

        return np.arange(self.count(size), dtype=np.int32)

    def count(self, size: Size) -> int:
        edge = self.patch * self.merge
        return (len(self.views(*size)) - 1) * (self.side // edge) ** 2 + (self.whole // edge) ** 2 + 1

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        import numpy as np

        *tiles, view = views
        high, wide, _ = view.shape
        top, left = self.offset(self.whole - high), self.offset(self.whole - wide)
        square = np.empty((self.whole, self.whole, 3), np.uint8)
        square[:] = self.colour
        square[top : top + high, left : left + wide] = view
        result = super().preprocess([*tiles, square], size)
        result.mix = self.arrange(size)[:, None]
        return result


class PaddedOcr(DeepseekOcr, frozen=True, kw_only=True):
    """Images are fitted and centred as PIL does."""

    def fit(self, width: int, height: int) -> Size:
        """As PIL's `ImageOps.contain`."""
        if width > height:
            return self.whole, round(height / width * self.whole)
        return round(width / height * self.whole), self.whole

    def offset(self, space: int) -> int:
        return round(space / 2)


class DeepseekOcr1(PaddedOcr, frozen=True, kw_only=True):
    """The tiles of a row stand beside each other. A learned vector ends each row of vectors, and another one the image."""

    def _tiling(self, size: Size) -> Size:
        """Columns and rows of tiles. 0, 0: none."""
        return closest(*size, self.side, self.least, self.most) if len(self.views(*size)) > 1 else (0, 0)

    def _edges(self) -> Size:
        """Vectors along an edge of a tile, and of the whole image."""
        edge = self.patch * self.merge
        return self.side // edge, self.whole // edge

    def count(self, size: Size) -> int:
        columns, rows = self._tiling(size)
        tile, whole = self._edges()
        return rows * tile * (columns * tile + 1) * bool(columns) + whole * (whole + 1) + 1

    def arrange(self, size: Size) -> np.ndarray:
        import numpy as np

        columns, rows = self._tiling(size)
        tile, whole = self._edges()
        cut = columns * rows * tile * tile
        line = cut + whole * whole
        tiles = np.arange(cut).reshape(rows, columns, tile, tile).transpose(0, 2, 1, 3).reshape(rows * tile, columns * tile)
        parts = [tiles, np.arange(cut, line).reshape(whole, whole)]
        rowed = [np.pad(part, ((0, 0), (0, 1)), constant_values=line).reshape(-1) for part in parts if part.size]
        return np.concatenate([*rowed, [line + 1]]).astype(np.int32)


def got_ocr2(config: Config, options: Config) -> GotOcr:
    seen = vision(config)
    side = edge(seen, "image_size", 1024)
    only(read_size(options, "size", ("height", "width"), {"height": 384, "width": 384}).values(), side)
    most = integer(options, "max_patches", high=64, default=12) if flag(options, "crop_to_patches", False) else 1
    return GotOcr(
        token=token(config, 151_859), patch=edge(seen, "patch_size", 16), side=side, most=most, merge=SHRUNK,
        least=integer(options, "min_patches", high=most, default=1), **settings(options, mean=MEAN, std=STD),
    )  # fmt: skip


def deepseek_ocr2(config: Config, options: Config) -> DeepseekOcr:
    seen = section(vision(config), "sam_config", "config.json: vision_config")
    whole = edge(seen, "image_size", 1024)
    only(read_size(options, "size", ("height", "width"), {"height": 1024, "width": 1024}).values(), whole)
    if not flag(options, "crop_to_patches", True):
        raise UnsupportedModelError(f"{FILE}: crop_to_patches: false is not supported by this version")
    colour = options.get("background_color", [127, 127, 127])
    if not isinstance(colour, list) or len(colour) != 3 or not all(type(v) is int and 0 <= v < 256 for v in colour):
        raise CheckpointError(f"{FILE}: background_color: must be three numbers from 0 to 255, not {colour!r:.80}")
    most = integer(options, "max_patches", high=64, default=6)
    return DeepseekOcr(
        token=token(config, 128_815), patch=edge(seen, "patch_size", 16), whole=whole, merge=SHRUNK,
        side=integer(options, "tile_size", high=whole, default=768, where=FILE), colour=(colour[0], colour[1], colour[2]),
        least=integer(options, "min_patches", high=most, default=2), most=most, **settings(options, mean=HALF, std=HALF),
    )  # fmt: skip


def deepseek_ocr2_chat(config: Config, options: Config) -> PaddedOcr:
    """Of the authors' format, whose files name the size of the whole image only."""
    whole = edge(vision(config), "image_size", 1024)
    around = {**outer(config), "vision_config": {"sam_config": {"image_size": whole}}}
    return PaddedOcr(**msgspec.structs.asdict(deepseek_ocr2({**config, BESIDE: around}, options)))


def deepseek_ocr(config: Config, options: Config) -> DeepseekOcr1:
    """The authors' files name the size of the whole image only. Tiles are those of their code, at most as many as in the
    configuration that they serve the model with."""
    whole = edge(vision(config), "image_size", 1024)
    most = integer(options, "max_patches", high=64, default=6)
    return DeepseekOcr1(
        token=token(config, 128_815), patch=edge({"patch_size": options.get("patch_size", 16)}, "patch_size", 16), whole=whole,
        merge=integer(options, "downsample_ratio", high=16, default=SHRUNK, where=FILE), side=whole * 5 // 8,
        colour=(127, 127, 127), least=integer(options, "min_patches", high=most, default=2), most=most,
        **settings(options, mean=HALF, std=HALF),
    )  # fmt: skip
