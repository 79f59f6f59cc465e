"""LLaVA-NeXT and OneVision: an image is shown whole, and in tiles with their padding removed. A learned vector ends each
row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thalweg.checkpoint.config import Config, integer, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import (
    ImageProcessor,
    Size,
    View,
    check_shape,
    only,
    outer,
    read_size,
    settings,
    token,
    vision,
)

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
NEXT = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
ONEVISION = [[384 * high, 384 * wide] for high in range(1, 7) for wide in range(1, 7)]
SHRINK = 1.1
"""Grids of vectors are reduced only where an edge, by geometric mean, exceeds the limit by more than this factor."""


class LlavaNext(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """Pixels of a tile."""
    pinpoints: tuple[Size, ...]
    """Height and width, in pixels, of the supported tile grids."""
    classes: bool
    """A vector of the whole tile is computed before those of its patches."""
    most: int = 0
    """Tiles that limit the vectors of an image. Larger grids of vectors are reduced; 0 = no limit."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        side, (high, wide) = self.side, self._best(width, height)
        if wide / width < high / height:
            fitted = (wide, min(math.ceil(height * (wide / width)), high))
        else:
            fitted = (min(math.ceil(width * (high / height)), wide), high)
        left, top = (wide - fitted[0]) // 2, (high - fitted[1]) // 2
        tiles = [
            View((fitted,), (x - left, y - top, x - left + side, y - top + side))
            for y in range(0, high, side) for x in range(0, wide, side)
        ]  # fmt: skip
        return (View(((side, side),)), *tiles)

    def _best(self, width: int, height: int) -> Size:
        """Height and width of the grid that shows most of the image's pixels, and of these the one with least padding."""
        found, shown, wasted = self.pinpoints[0], 0, float("inf")
        for high, wide in self.pinpoints:
            scale = min(wide / width, high / height)
            seen = min(int(width * scale) * int(height * scale), width * height)
            waste = wide * high - seen
            if seen > shown or (seen == shown and waste < wasted):
                found, shown, wasted = (high, wide), seen, waste
        return found

    @property
    def each(self) -> int:
        """Vectors along an edge of a tile."""
        return self.side // self.patch

    def across(self, size: Size) -> int:
        """Tiles in a row."""
        return self._best(*size)[1] // self.side

    def rows(self, size: Size) -> tuple[int, int, int, int]:
        """Of the vectors of tiles, rows and columns that show the image: the first row, how many, the first column, how
        many."""
        (width, height), (high, wide), each = size, self._best(*size), self.each
        rows, columns = each * (high // self.side), each * (wide // self.side)
        if width / height > columns / rows:
            over = (rows - int(round(height * (columns / width), 7))) // 2
            return over, rows - 2 * over, 0, columns
        over = (columns - int(round(width * (rows / height), 7))) // 2
        return 0, rows, over, columns - 2 * over

    def grid_size(self, size: Size) -> Size:
        """Rows and columns of the vectors that remain."""
        _, rows, _, columns = self.rows(size)
        less = math.sqrt(rows * columns / (self.most * self.each**2)) if self.most else 0
        return (int(rows // less), int(columns // less)) if less > SHRINK else (rows, columns)

    def count(self, size: Size) -> int:
        rows, columns = self.grid_size(size)
        return self.each**2 + rows * (columns + 1)

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import anyres, patches

        result = patches.square(self, views, self.classes, False)
        result.mix, result.part = anyres.pack_image_features(self, size)
        return result


def llava_next(config: Config, options: Config) -> LlavaNext:
    return build(config, options, NEXT, "clip_vision_model", "default")


def llava_onevision(config: Config, options: Config) -> LlavaNext:
    ratio = text(outer(config), "vision_aspect_ratio", "anyres_max_9")
    most = ratio.removeprefix("anyres_max_")
    if not most.isdecimal() or not 1 <= int(most) <= 64:
        raise UnsupportedModelError(f"config.json: vision_aspect_ratio: {ratio!r:.40} is not anyres_max_9 or the like")
    return build(config, options, ONEVISION, "siglip_vision_model", "full", most=int(most))


def build(config: Config, options: Config, pinpoints: list[list[int]], kind: str, strategy: str, **more: Any) -> LlavaNext:
    """pinpoints, kind, strategy: defaults of the grids, of the encoder, and of `vision_feature_select_strategy`."""
    seen, around = vision(config), outer(config)
    classes = text(seen, "model_type", kind) == "clip_vision_model"
    if text(around, "vision_feature_select_strategy", strategy) != ("default" if classes else "full"):
        raise UnsupportedModelError("config.json: vision_feature_select_strategy: does not fit the encoder")
    side = integer(seen, "image_size", default=336 if classes else 384)
    fit = read_size(options, "size", ("shortest_edge", "height", "width"), {"shortest_edge": side})
    only([*fit.values(), *read_size(options, "crop_size", ("height", "width"), {"height": side}).values()], side)
    found = around.get("image_grid_pinpoints") or options.get("image_grid_pinpoints") or pinpoints
    whole = isinstance(found, list) and all(
        isinstance(p, list) and len(p) == 2 and all(type(n) is int and 0 < n <= 1 << 14 and n % side == 0 for n in p)
        for p in found
    )
    if not whole:
        raise CheckpointError(f"config.json: image_grid_pinpoints: must be pairs of multiples of {side}")
    return LlavaNext(
        token=token(config, 32_000 if classes else 151_646), patch=integer(seen, "patch_size", default=14), side=side,
        pinpoints=tuple((high, wide) for high, wide in found), classes=classes, **more, **settings(options, mean=MEAN, std=STD),
    )  # fmt: skip
