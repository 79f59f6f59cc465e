"""Idefics 3 and SmolVLM: a large image is cut into squares, each with its row and column before it, and shown whole last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from thalweg.checkpoint.config import BESIDE, Config, flag, integer
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import (
    FILE,
    HALF,
    ImageProcessor,
    Size,
    View,
    check_shape,
    cut,
    outer,
    read_edges,
    settings,
    token,
    vision,
)

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"
LANCZOS = 1
LONGEST = 4096
"""Pixels of an image's longer edge, whatever the file says."""


class Idefics3(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """Pixels of a tile."""
    longest: int
    """Pixels that an image's longer edge is brought to before it is cut."""
    merge: int
    cuts: bool = True

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        side, fitted = self.side, self._fit_size(width, height)
        if not self.cuts:
            return (View((fitted, (side, side))),)
        columns, rows = self._tiling(fitted)
        whole = (columns * side, rows * side)
        if columns * rows == 1:
            return (View((fitted, whole)),)
        return (*cut((fitted, whole), columns, rows, side), View((fitted, whole, (side, side))))

    def _fit_size(self, width: int, height: int) -> Size:
        ratio = width / height
        if width >= height:
            width, height = self.longest, int(self.longest / ratio)
            height += height % 2
        else:
            width, height = int(self.longest * ratio), self.longest
            width += width % 2
        width, height = max(width, 1), max(height, 1)
        ratio = width / height
        if width >= height and width > LONGEST:
            width, height = LONGEST, int(LONGEST / ratio)
        elif height > width and height > LONGEST:
            width, height = int(LONGEST * ratio), LONGEST
        return max(width, 1), max(height, 1)

    def _tiling(self, fitted: Size) -> Size:
        """Columns and rows of tiles. The shorter edge is fitted to the longer one after that was made full tiles."""
        (width, height), side = fitted, self.side
        ratio = width / height
        if width >= height:
            columns = math.ceil(width / side)
            return columns, math.ceil(int(columns * side / ratio) / side)
        rows = math.ceil(height / side)
        return math.ceil(int(rows * side * ratio) / side), rows

    @property
    def each(self) -> int:
        """Vectors of a tile."""
        return (self.side // self.patch // self.merge) ** 2

    def count(self, size: Size) -> int:
        return len(self.views(*size)) * self.each

    def text(self, size: Size, token: str) -> str:
        columns, rows = self._tiling(self._fit_size(*size)) if self.cuts else (1, 1)
        whole = f"{AROUND}{WHOLE}{token * self.each}{AROUND}"
        if columns * rows == 1:
            return whole
        lines = [
            "".join(f"{AROUND}<row_{y + 1}_col_{x + 1}>{token * self.each}" for x in range(columns)) + "\n"
            for y in range(rows)
        ]  # fmt: skip
        return "".join(lines) + f"\n{whole}"

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        result = patches.square(self, views, False, False, self.merge)
        result.place = patches.bucket_positions(self.side // self.patch, len(views))
        return result


class ModernVBert(Idefics3, frozen=True, kw_only=True):
    """Its encoder finds positions by counting."""

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.square(self, views, False, False, self.merge)


def colmodernvbert(config: Config, options: Config) -> ModernVBert:
    seen, around = {"image_size": 224, "patch_size": 16, **vision(config)}, outer(config)
    merge = integer(around, "pixel_shuffle_factor", high=16, default=4)
    around = {**around, "image_token_id": token(config, 50_407), "vision_config": seen, "scale_factor": merge}
    return ModernVBert(**msgspec.structs.asdict(idefics3({**config, BESIDE: around}, options)))


def idefics3(config: Config, options: Config) -> Idefics3:
    seen = vision(config)
    side = integer(seen, "image_size", default=224)
    tile = read_edges(options, "max_image_size", ("longest_edge",), {"longest_edge": side})["longest_edge"]
    if tile != side:
        raise UnsupportedModelError(f"{FILE}: max_image_size: the encoder requires squares of {side} pixels")
    if flag(options, "do_pad", True) is False:
        raise UnsupportedModelError(f"{FILE}: do_pad: false is not supported by this version")
    return Idefics3(
        token=token(config, 128_257), patch=integer(seen, "patch_size", default=32), side=side,
        longest=read_edges(options, "size", ("longest_edge",), {"longest_edge": 4 * 364})["longest_edge"],
        merge=integer(outer(config), "scale_factor", high=16, default=2), cuts=flag(options, "do_image_splitting", True),
        **settings(options, mean=HALF, std=HALF, resample=LANCZOS),
    )  # fmt: skip
