"""Molmo 2: an image is shown whole on a square, then in squares that overlap. Windows of patches become vectors, and all tokens
of an image attend to each other."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError
from thalweg.media.processors.base import (
    BILINEAR,
    FILE,
    HALF,
    ImageProcessor,
    Size,
    View,
    check_shape,
    only,
    outer,
    read_size,
    settings,
    vision,
)

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

PATCH, COLUMN, BEGIN, LOW, END = "<im_patch>", "<im_col>", "<im_start>", "<low_res_im_start>", "<im_end>"
KEYS = {
    "image_token_id": PATCH, "image_column_id": COLUMN, "image_begin_id": BEGIN, "image_low_id": LOW, "image_end_id": END,
}  # fmt: skip
"""Key -> text of the token of this id."""


class Molmo2(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """Pixels of a square."""
    most: int
    """Squares, besides the whole image."""
    margins: tuple[int, int]
    """Patches that squares share with the one before, and behind."""
    pool: Size
    """Columns and rows of a window."""
    column: bool
    """A token stands behind each row of vectors of the squares."""
    low_column: bool
    """The same of the whole image."""
    low_begin: bool
    """The whole image begins with a token of another name."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        columns, rows = self._tiling(width, height)
        canvas = tuple(edge * self.patch for edge in self._canvas(columns, rows))
        step, side = self._step * self.patch, self.side
        boxes = [(x * step, y * step, x * step + side, y * step + side) for y in range(rows) for x in range(columns)]
        return (View(((side, side),)), *(View(((canvas[0], canvas[1]),), box) for box in boxes))

    @property
    def _step(self) -> int:
        """Patches from a square to the next."""
        return self.side // self.patch - sum(self.margins)

    def _canvas(self, columns: int, rows: int) -> Size:
        """Patches along the edges of the squares together."""
        return columns * self._step + sum(self.margins), rows * self._step + sum(self.margins)

    def _tiling(self, width: int, height: int) -> Size:
        """Columns and rows of the squares that enlarge an image least, or shrink it least if all do. In float32, as there."""
        step, margin = self._step * self.patch, sum(self.margins) * self.patch
        each = range(1, self.most + 1)
        grids = sorted(((a, b) for a, b in product(each, each) if a * b <= self.most), key=_order)
        scales = [
            min(_divide(rows * step, height - margin), _divide(columns * step, width - margin)) for rows, columns in grids
        ]
        larger = [scale for scale in scales if scale >= 1]
        rows, columns = grids[scales.index(min(larger) if larger else max(scales))]
        return columns, rows

    def _windows(self, size: Size) -> tuple[Size, Size]:
        """Columns and rows of windows, of the whole image and of the squares."""
        whole = self.side // self.patch
        grids = (whole, whole), self._canvas(*self._tiling(*size))
        low, high = (tuple(-(-edge // each) for edge, each in zip(grid, self.pool, strict=True)) for grid in grids)
        return (low[0], low[1]), (high[0], high[1])

    def count(self, size: Size) -> int:
        """Vectors, and tokens around them, whose embeddings they do not change."""
        low, high = self._windows(size)
        return (low[0] + self.low_column) * low[1] + (high[0] + self.column) * high[1] + 4

    def text(self, size: Size, token: str) -> str:
        low, high = self._windows(size)
        first = (token * low[0] + COLUMN * self.low_column) * low[1]
        return f"{LOW if self.low_begin else BEGIN}{first}{END}{BEGIN}{(token * high[0] + COLUMN * self.column) * high[1]}{END}"

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        import numpy as np

        from thalweg.media import patches

        columns, rows = self._tiling(*size)
        side = self.side // self.patch
        whole = np.arange(side * side, dtype=np.int32).reshape(side, side)
        grid = side * side + self._join(columns, rows, side)
        result = patches.pooled_windows(self, views, [whole, grid], self.pool)
        low, high = self._windows(size)
        marks = [_mark(low, self.low_column), _mark(high, self.column)]
        shown = np.concatenate([np.pad(each, 1) for each in marks])
        at = np.maximum(np.cumsum(shown) - 1, 0).astype(np.int32)
        result.mix = np.stack([at, at], 1)
        result.part = np.stack([shown, np.zeros_like(shown)], 1).astype(np.float32)
        return result

    def _join(self, columns: int, rows: int, side: int) -> np.ndarray:
        """i32[rows, columns] of the patches of all squares together: which patch of which square lies there."""
        import numpy as np

        before, behind = self.margins
        each = np.arange(rows * columns * side * side, dtype=np.int32).reshape(rows, columns, side, side)
        lines = []
        for y in range(rows):
            top, bottom = before * (y > 0), side - behind * (y < rows - 1)
            parts = [
                each[y, x, top:bottom, before * (x > 0) : side - behind * (x < columns - 1)] for x in range(columns)
            ]  # fmt: skip
            lines.append(np.concatenate(parts, 1))
        return np.concatenate(lines, 0)


def _order(grid: Size) -> Size:
    return grid[0] * grid[1], grid[0]


def _divide(one: int, other: int) -> float:
    """In float32."""
    if not other:
        return float("inf")
    return float(struct.unpack("f", struct.pack("f", one / other))[0])


def _mark(windows: Size, column: bool) -> np.ndarray:
    """i32[placeholders]: 1 for those with a vector, 0 for ends of rows."""
    import numpy as np

    result = np.ones((windows[1], windows[0] + column), np.int32)
    result[:, windows[0] :] = 0
    return result.reshape(-1)


def molmo2(config: Config, options: Config) -> Molmo2:
    seen, around = vision(config), outer(config)
    patch = integer(seen, "image_patch_size", default=integer(seen, "patch_size", default=14))
    sides: Any = seen.get("image_default_input_size") or seen.get("image_size") or [378, 378]
    side = sides[0] if isinstance(sides, list) and sides and type(sides[0]) is int else sides
    if type(side) is not int or side % patch:
        raise CheckpointError(
            f"config.json: vit_config: image_default_input_size: must be multiples of {patch}, not {sides!r:.40}"
        )
    only(read_size(options, "size", ("height", "width"), {"height": 378, "width": 378}).values(), side)
    margins, pool = _pair(options, "overlap_margins", [4, 4], 0), _pair(options, "pooling_size", [2, 2], 1)
    if sum(margins) >= side // patch:
        raise CheckpointError(f"{FILE}: overlap_margins: {list(margins)} leave nothing of {side // patch} patches")
    column = flag(options, "image_use_col_tokens", True)
    low = options.get("use_single_crop_col_tokens")
    return Molmo2(
        token=integer(around, "image_token_id", low=0), patch=patch, marker="<|image|>", side=side, margins=margins,
        others=tuple(integer(around, key, low=0) for key in KEYS if key != "image_token_id"),
        most=integer(options, "max_crops", high=64, default=8, where=FILE), pool=(pool[1], pool[0]), column=column,
        low_column=column if low is None else flag(options, "use_single_crop_col_tokens", column),
        low_begin=flag(options, "use_single_crop_start_token", True), together=True, single=True, sampled=True,
        **settings(options, mean=HALF, std=HALF, resample=BILINEAR),
    )  # fmt: skip


def _pair(options: Config, key: str, default: list[int], least: int) -> tuple[int, int]:
    found = options.get(key)
    found = default if found is None else found
    if not isinstance(found, list) or len(found) != 2 or not all(type(n) is int and n >= least for n in found):
        raise CheckpointError(f"{FILE}: {key}: must be two numbers of at least {least}, not {found!r:.40}")
    return found[0], found[1]
