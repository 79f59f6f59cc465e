"""Llama 4: an image is fitted to a grid of squares that has its ratio, padded with black, and shown whole last."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, flag, integer, real
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
    shuffle,
    token,
    vision,
)

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs


class Llama4(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """Pixels of a square."""
    most: int
    """Squares."""
    merge: int
    head_dim: int
    theta: float

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        columns, rows = self.tiling(width, height)
        tiles = cut((self._fit_size(width, height),), columns, rows, self.side)
        return tiles if len(tiles) == 1 else (*tiles, View(((self.side, self.side),)))

    def tiling(self, width: int, height: int) -> Size:
        """Columns and rows: those in which the image grows least, or else shrinks least. Of several the fewest squares."""
        grids: dict[float, list[Size]] = {}
        for squares in range(self.most, 0, -1):
            for rows in (n for n in range(1, squares + 1) if squares % n == 0):
                grids.setdefault(rows / (squares // rows), []).append((squares // rows, rows))
        every = [grid for alike in grids.values() for grid in alike]
        scales = [min(_single(x * self.side / width), _single(y * self.side / height)) for x, y in every]
        best = min((scale for scale in scales if scale >= 1), default=max(scales))
        return min((grid for grid, scale in zip(every, scales, strict=True) if scale == best), key=lambda g: g[0] * g[1])

    def _fit_size(self, width: int, height: int) -> Size:
        """Images smaller than a square are enlarged to one, and no further. Numbers are rounded as tensors round them, where
        the grid sets the limit."""
        columns, rows = self.tiling(width, height)
        wide, high = (
            (grid * self.side, True) if grid * self.side < max(had, self.side) else (max(had, self.side), False)
            for grid, had in ((columns, width), (rows, height))
        )
        across, down = _scale(*wide, width), _scale(*high, height)
        if across < down:
            return wide[0], max(1, min(_floor(height * across, wide[1]), high[0]))
        return max(1, min(_floor(width * down, high[1]), wide[0])), high[0]

    @property
    def each(self) -> int:
        """Vectors of a square."""
        return (self.side // self.patch // self.merge) ** 2

    def count(self, size: Size) -> int:
        return len(self.views(*size)) * self.each

    def text(self, size: Size, token: str) -> str:
        (columns, rows), each = self.tiling(*size), token * self.each
        line = "<|tile_x_separator|>".join([each] * columns) + "<|tile_y_separator|>"
        return f"<|image_start|>{line * rows if columns * rows > 1 else ''}<|image|>{each}<|image_end|>"

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.rotary_tiles(self, views)


def _single(number: float) -> float:
    """Rounded to single precision."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def _scale(limit: int, rounds: bool, had: int) -> float:
    return _single(limit / had) if rounds else limit / had


def _floor(number: float, rounds: bool) -> int:
    return math.floor(_single(number) if rounds else number)


def llama4(config: Config, options: Config) -> Llama4:
    seen = vision(config)
    if flag(options, "resize_to_max_canvas", False):
        raise UnsupportedModelError(f"{FILE}: resize_to_max_canvas is not supported by this version")
    side, patch = edge(seen, "image_size", 448), edge(seen, "patch_size", 14)
    only(read_size(options, "size", ("height", "width"), {"height": side, "width": side}).values(), side)
    rope = seen.get("rope_parameters")
    return Llama4(
        token=token(config, 200_092), patch=patch, side=side,
        most=integer(options, "max_patches", high=64, default=16, where=FILE),
        merge=shuffle(seen, "pixel_shuffle_ratio"), marker="<|image|>", coarse=True,
        head_dim=integer(seen, "hidden_size", default=768) // integer(seen, "num_attention_heads", default=16),
        theta=real(rope if isinstance(rope, dict) else seen, "rope_theta", 1, 1e9, default=1e4),
        **settings(options, mean=HALF, std=HALF, resample=BILINEAR),
    )  # fmt: skip
