"""MiniCPM-V 4.6: an image is shown whole, and a large one in slices with the image's ratio too. Each image has its number
before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, flag, integer, text
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import FILE, HALF, ImageProcessor, Size, View, check_shape, outer, settings, token, vision

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

MERGE = 4
"""Patches along each edge that become one vector."""


class MiniCpmV(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """Rows of the table of places, and columns."""
    edge: int
    """Of a square that has as many pixels as a slice."""
    most: int
    """Slices."""
    upsizes: bool = True
    """Are small images enlarged?"""
    merge: int = MERGE
    """Patches along each edge of one vector, where it has no resampler."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        columns, rows = self._grid(width, height)
        whole = View((self._fit_size(width, height, more=self.upsizes and columns * rows == 1),))
        if columns * rows == 1:
            return (whole,)
        wide, high = self._slice(width, height)
        boxes = [(x * wide, y * high, (x + 1) * wide, (y + 1) * high) for y in range(rows) for x in range(columns)]
        return (whole, *(View(((columns * wide, rows * high),), box) for box in boxes))

    def _slice(self, width: int, height: int) -> Size:
        columns, rows = self._grid(width, height)
        return self._fit_size(_near(width, columns) / columns, _near(height, rows) / rows, more=True)

    def _fit_size(self, width: float, height: float, more: bool) -> Size:
        """more: smaller images are enlarged."""
        if more or height * width > self.edge**2:
            ratio = width / height
            height = int(self.edge / math.sqrt(ratio))
            width = int(height * ratio)
        unit = self.patch * self.merge
        return _near(width, unit), _near(height, unit)

    def _grid(self, width: int, height: int) -> Size:
        """Columns and rows of slices that have the image's ratio best. 1, 1: it is not cut."""
        multiple = min(math.ceil(width * height / self.edge**2), self.most)
        best, found = float("inf"), (1, 1)
        for slices in (multiple - 1, multiple, multiple + 1) if multiple > 1 else ():
            if slices == 1 or slices > self.most:
                continue
            for rows in (n for n in range(1, slices + 1) if slices % n == 0):
                off = abs(math.log(width / height) - math.log(slices // rows / rows))
                if off < best or (off == best and rows > found[1]):
                    best, found = off, (slices // rows, rows)
        return found

    def _each(self, size: Size) -> int:
        return size[0] * size[1] // (self.patch * self.merge) ** 2

    def count(self, size: Size) -> int:
        columns, rows = self._grid(*size)
        cut = columns * rows * self._each(self._slice(*size)) if columns * rows > 1 else 0
        return cut + self._each(self.first_view_size(size))

    def text(self, size: Size, token: str) -> str:
        columns, rows = self._grid(*size)
        whole = f"<image>{token * self._each(self.first_view_size(size))}</image>"
        if columns * rows == 1:
            return whole
        line = f"<slice>{token * self._each(self._slice(*size))}</slice>" * columns
        return whole + "\n".join([line] * rows)

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.nested_blocks(self, views)


def _near(length: float, unit: int) -> int:
    """The nearest multiple, at least one."""
    return max(round(length / unit) * unit, unit)


def minicpm_ocr(config: Config, options: Config) -> MiniCpmV:
    return minicpm_v(config, options, "4x")


def minicpm_v(config: Config, options: Config, absent: str = "16x") -> MiniCpmV:
    """absent: `downsample_mode`, where the files do not say."""
    seen = vision(config)
    mode = text(outer(config), "downsample_mode", absent)
    if text(options, "downsample_mode", absent) != mode:
        raise UnsupportedModelError(f"{FILE}: downsample_mode: must be {mode}, as in config.json")
    upsizes = text(options, "small_image_upsize", "always")
    if upsizes not in ("always", "never"):
        raise UnsupportedModelError(f"{FILE}: small_image_upsize: {upsizes!r:.40} is not supported; always and never are")
    patch = integer(seen, "patch_size", high=1 << 10, default=16)
    return MiniCpmV(
        merge=2 if mode == "4x" else MERGE, upsizes=upsizes == "always",
        token=token(config), patch=patch, side=integer(seen, "image_size", default=224) // patch,
        edge=integer(options, "scale_resolution", high=1 << 13, default=448, where=FILE),
        most=integer(options, "max_slice_nums", high=64, default=9, where=FILE) if flag(options, "slice_mode", True) else 1,
        number="<image_id>{}</image_id>" if flag(options, "use_image_id", True) else "",
        **settings(options, mean=HALF, std=HALF),
    )  # fmt: skip
