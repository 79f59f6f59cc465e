"""Donut: a page of fixed size, in the middle of which an image lies. It has no placeholder in the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import (
    BILINEAR,
    FILE,
    ImageProcessor,
    Size,
    View,
    check_shape,
    read_size,
    settings,
    vision,
)

if TYPE_CHECKING:
    import numpy as np

MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


def page(config: Config) -> tuple[int, int]:
    """Rows and columns of pixels."""
    found = vision(config).get("image_size", 224)
    found = [found, found] if type(found) is int else found
    if not isinstance(found, list) or len(found) != 2 or not all(type(n) is int and 0 < n < 1 << 14 for n in found):
        raise CheckpointError(f"config.json: encoder: image_size: must be a height and a width, not {found!r:.80}")
    return found[0], found[1]


class Donut(ImageProcessor, frozen=True, kw_only=True):
    """`token` stands nowhere in a prompt."""

    rows: int
    columns: int

    def complete(self, prompt: str) -> str:
        return prompt if self.marker in prompt else self.marker + prompt

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        sizes = (self._enlarge(width, height), self._fit(*self._enlarge(width, height)))
        across, down = sizes[-1]
        left, top = (self.columns - across) // 2, (self.rows - down) // 2
        return (View(sizes, (-left, -top, self.columns - left, self.rows - top)),)

    def _enlarge(self, width: int, height: int) -> Size:
        """The shorter edge becomes that of the page."""
        short = min(self.rows, self.columns)
        long = int(short * max(width, height) / min(width, height))
        return (short, long) if width <= height else (long, short)

    def _fit(self, width: int, height: int) -> Size:
        """The longer edge becomes no longer than the page."""
        down, across = min(height, self.rows), min(width, self.columns)
        if (across, down) == (width, height):
            return width, height
        if height > width:
            return int(width * down / height), down
        return (across, int(height * across / width)) if width > height else (across, down)

    def text(self, size: Size, token: str) -> str:
        return ""

    def count(self, size: Size) -> int:
        return 0

    def source_array(self, views: Sequence[np.ndarray], size: Size, position: int) -> np.ndarray:
        import numpy as np

        from thalweg.media import patches

        pixels = patches.normalize(views[0], self).transpose(2, 0, 1).reshape(-1, self.columns)
        head = np.zeros((1, self.columns), np.float32)
        head[0, :3] = 1, 1, position
        return np.concatenate([head, pixels])


def donut(config: Config, options: Config) -> Donut:
    rows, columns = page(config)
    size = options.get("size")
    size = {"height": size[1], "width": size[0]} if isinstance(size, list) and len(size) == 2 else size
    found = read_size({**options, "size": size}, "size", ("height", "width"), {"height": 2560, "width": 1920})
    if found != {"height": rows, "width": columns}:
        raise UnsupportedModelError(f"{FILE}: size: the encoder requires {rows} x {columns} pixels")
    for key, default, wanted in (("do_align_long_axis", False, False), ("do_thumbnail", True, True), ("do_pad", True, True)):
        if flag(options, key, default) is not wanted:
            raise UnsupportedModelError(f"{FILE}: {key}: must be {str(wanted).lower()}")
    return Donut(
        token=integer(config, "pad_token_id", low=0, default=1), marker="<image>", patch=1, rows=rows, columns=columns,
        source=True, bare=True, **settings(options, mean=MEAN, std=STD, resample=BILINEAR),
    )  # fmt: skip
