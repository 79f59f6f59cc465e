"""Ovis 2: an image is shown whole, then in as few tiles as show most of it without loss. Tokens around tiles have learned
vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import (
    ImageProcessor,
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
from thalweg.media.processors.tiles import MEAN, STD

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

COVERED = 0.9
"""The share of an image's area that tiles of the fewest pixels must show."""
START, GRID, COLUMN, ROW, END = range(5)
NAMES = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")


class Ovis2(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """Pixels of a tile."""
    least: int
    most: int
    """Tiles."""
    merge: int
    """Patches along each edge that become one vector."""
    covers: bool
    """Tiles are chosen by the area that they show. False: by the image's ratio."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        columns, rows = self.tiling(width, height)
        side, whole = self.side, View(((self.side, self.side),))
        return (whole, *cut(((side * columns, side * rows),), columns, rows, side)) if columns * rows > 1 else (whole,)

    def tiling(self, width: int, height: int) -> Size:
        """Columns and rows."""
        if self.most == 1:
            return 1, 1
        if not self.covers:
            return closest(width, height, self.side, self.least, self.most)
        grids = [(a, b) for a in range(1, self.most + 1) for b in range(1, self.most + 1) if a * b <= self.most]
        shown = {grid: self._share(width, height, *grid) for grid in grids}
        enough = [grid for grid in grids if shown[grid] > COVERED]
        if enough:
            return min(enough, key=lambda grid: (grid[0] * grid[1], -shown[grid]))
        return min(grids, key=lambda grid: (-shown[grid], grid[0] * grid[1]))

    def _share(self, width: int, height: int, rows: int, columns: int) -> float:
        """The share of an image's area that so many tiles show. The authors' code, and so the model, then reads these rows as
        columns."""
        area, high, wide = 0.0, height // rows, width // columns
        for row in range(rows):
            for column in range(columns):
                across = width - column * wide if column == columns - 1 else wide
                down = height - row * high if row == rows - 1 else high
                long, short = max(across, down), min(across, down)
                area += self.side * (short / long * self.side) if long > self.side else long * short
        return area / (width * height)

    @property
    def each(self) -> int:
        """Vectors of a tile."""
        return (self.side // self.patch // self.merge) ** 2

    def _signs(self, size: Size) -> list[int]:
        """After each tile, the token behind it."""
        columns, rows = self.tiling(*size)
        if columns * rows == 1:
            return [GRID, END]
        behind = [COLUMN] * (columns - 1)
        return [GRID, *(sign for row in range(rows) for sign in (*behind, ROW if row < rows - 1 else END))]

    def count(self, size: Size) -> int:
        return len(self.views(*size)) * self.each + len(self._signs(size)) + 1

    def text(self, size: Size, token: str) -> str:
        signs = [NAMES[sign] for sign in self._signs(size)]
        if len(self.views(*size)) == 1:
            return NAMES[START] + token * self.each + "".join(signs)
        return NAMES[START] + "".join(token * self.each + sign for sign in signs)

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return self.with_signs(patches.square(self, views, False, False, self.merge), len(views), size)

    def with_signs(self, result: PatchInputs, views: int, size: Size) -> PatchInputs:
        """With the learned vectors around those of so many views."""
        import numpy as np

        last, each = views * self.each, self.each
        places = [last + START]
        for i, sign in enumerate(self._signs(size)):
            places += [*range(i * each, min((i + 1) * each, last)), last + sign]
        result.mix = np.array(places, np.int32)[:, None]
        return result


def ovis2(config: Config, options: Config) -> Ovis2:
    seen = vision(config)
    side, patch = edge(seen, "image_size", 224), edge(seen, "patch_size", 14)
    merge, cuts = integer(seen, "hidden_stride", high=16, default=1), flag(options, "crop_to_patches", False)
    if side // patch % merge:
        raise UnsupportedModelError(f"config.json: vision_config: hidden_stride: {merge} must divide {side // patch} patches")
    only(read_size(options, "size", ("height", "width"), {"height": 384, "width": 384}).values(), side)
    most = integer(options, "max_patches", high=64, default=12) if cuts else 1
    signs = outer(config).get("visual_indicator_token_ids", [151_666, 151_667, 151_668, 151_669, 151_670])
    if not isinstance(signs, list) or len(signs) != len(NAMES) or not all(type(i) is int for i in signs):
        raise CheckpointError(f"config.json: visual_indicator_token_ids: must be {len(NAMES)} token ids")
    return Ovis2(
        token=token(config, 151_665), marker="<image>", side=side, patch=patch, merge=merge, most=most,
        least=integer(options, "min_patches", high=max(most, 1), default=1) if cuts else 1, others=tuple(signs),
        covers=flag(options, "use_covering_area_grid", True), **settings(options, mean=MEAN, std=STD),
    )  # fmt: skip
