"""Llama 3.2 Vision: an image is fitted into the canvas of tiles that changes its size least, filled up with black."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import (
    BILINEAR,
    FILE,
    HALF,
    ImageProcessor,
    Size,
    View,
    check_shape,
    cut,
    edge,
    only,
    read_size,
    settings,
    token,
    vision,
)

if TYPE_CHECKING:
    import numpy as np


def arrangements(tiles: int) -> list[Size]:
    """(rows, columns) of tiles, at most so many, in the order of their numbers."""
    return [(rows, columns) for rows in range(1, tiles + 1) for columns in range(1, tiles + 1) if rows * columns <= tiles]


class Mllama(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """Pixels of a tile."""
    most: int
    """Tiles."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        rows, columns = self.arrangement((width, height))
        return cut((self._fit(width, height, columns * self.side, rows * self.side),), columns, rows, self.side)

    def arrangement(self, size: Size) -> Size:
        """Rows and columns of tiles: as little enlarged as possible, else as little shrunk."""
        width, height = size
        grids = arrangements(self.most)
        scales = [min(rows * self.side / height, columns * self.side / width) for rows, columns in grids]
        larger = [scale for scale in scales if scale >= 1]
        wanted = min(larger) if larger else max(scales)
        return min((g for g, s in zip(grids, scales, strict=True) if s == wanted), key=lambda g: g[0] * g[1])

    def _fit(self, width: int, height: int, across: int, down: int) -> Size:
        """The size of an image on a canvas. It is at least as long as a tile along one axis."""
        across, down = min(max(width, self.side), across), min(max(height, self.side), down)
        if across / width < down / height:
            return across, min(int(height * (across / width)) or 1, down)
        return min(int(width * (down / height)) or 1, across), down

    def count(self, size: Size) -> int:
        return 1

    def source_array(self, views: Sequence[np.ndarray], size: Size, position: int) -> np.ndarray:
        import numpy as np

        from thalweg.media import patches

        value = np.concatenate([patches.cut(patches.normalize(view, self), self.patch) for view in views])
        head = np.zeros((1, value.shape[1]), np.float32)
        head[0, :3] = len(views), 1 + arrangements(self.most).index(self.arrangement(size)), position
        return np.concatenate([head, value])


def mllama(config: Config, options: Config) -> Mllama:
    seen = vision(config)
    side, most = edge(seen, "image_size", 448), integer(seen, "max_num_tiles", high=64, default=4)
    known = seen.get("supported_aspect_ratios")
    if known is not None and [tuple(each) for each in known] != arrangements(most):
        raise UnsupportedModelError("config.json: vision_config: supported_aspect_ratios: must be those of all arrangements")
    only(read_size(options, "size", ("height", "width"), {"height": 224, "width": 224}).values(), side)
    only_all = integer(options, "max_image_tiles", high=64, default=4) == most and flag(options, "do_pad", True)
    if not only_all:
        raise UnsupportedModelError(f"{FILE}: max_image_tiles, do_pad: must be max_num_tiles of config.json ({most}) and true")
    return Mllama(
        token=token(config, 128_256), patch=edge(seen, "patch_size", 14), side=side, most=most, source=True,
        **settings(options, mean=HALF, std=HALF, resample=BILINEAR),
    )  # fmt: skip
