"""Fuyu: rows of patches, each with a line end, in images of any size up to a maximum. They stand before the token that begins
a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import (
    BILINEAR,
    FILE,
    HALF,
    ImageProcessor,
    Size,
    View,
    check_shape,
    read_edges,
    read_size,
    settings,
    token,
    vision,
)

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

NEWLINE, BEGIN, ANSWER = "|NEWLINE|", "<s>", "<0x04>"
"""Behind each row of patches, before a text, and before an answer."""


class Fuyu(ImageProcessor, frozen=True, kw_only=True):
    most: Size
    """Larger images are resized to this."""
    shade: int
    """Of the values that fill incomplete patches."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        return (View((self._fit((width, height)),)),)

    def _fit(self, size: Size) -> Size:
        (width, height), (across, down) = size, self.most
        if width <= across and height <= down:
            return size
        scale = min(down / height, across / width)
        return max(1, int(width * scale)), max(1, int(height * scale))

    def _count_patches(self, size: Size) -> Size:
        """Columns and rows."""
        width, height = self._fit(size)
        return -(-width // self.patch), -(-height // self.patch)

    def count(self, size: Size) -> int:
        columns, rows = self._count_patches(size)
        return columns * rows

    def text(self, size: Size, token: str) -> str:
        columns, rows = self._count_patches(size)
        return (token * columns + NEWLINE) * rows + BEGIN

    def complete(self, prompt: str) -> str:
        """The image, the text, and the token before an answer. The prompt may omit the placeholder and both tokens."""
        text = prompt.replace(self.marker, "").removeprefix(BEGIN).removesuffix(ANSWER)
        return f"{self.marker}{text}{ANSWER}"

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        """Patches hold the channels of each pixel side by side."""
        import numpy as np

        from thalweg.media import patches

        (view,), (columns, rows), side = views, self._count_patches(size), self.patch
        whole = np.full((rows * side, columns * side, 3), self.shade, np.uint8)
        whole[: view.shape[0], : view.shape[1]] = view
        value = patches.normalize(whole, self).reshape(rows, side, columns, side * 3).swapaxes(1, 2)
        count = rows * columns
        return patches.PatchInputs(np.ascontiguousarray(value).reshape(count, -1), [count], np.arange(count, dtype=np.int32))


def fuyu(config: Config, options: Config) -> Fuyu:
    patch = integer(vision(config), "patch_size", high=1 << 12, default=30)
    most = read_edges(options, "size", ("height", "width"), {"height": 1080, "width": 1920})
    cut = read_size(options, "patch_size", ("height", "width"), {"height": patch, "width": patch})
    if set(cut.values()) != {patch} or any(edge % patch for edge in most.values()):
        raise UnsupportedModelError(f"{FILE}: patch_size, size: must be {patch} pixels, and multiples of it")
    shade = options.get("padding_value", 1.0)
    if shade not in range(256) or options.get("padding_mode", "constant") != "constant":
        raise UnsupportedModelError(f"{FILE}: padding_value, padding_mode: only whole numbers below 256, constant")
    return Fuyu(
        token=token(config, 71_011), marker="|SPEAKER|", patch=patch, most=(most["width"], most["height"]), shade=int(shade),
        single=True, bare=True, **settings(options, mean=HALF, std=HALF, resample=BILINEAR),
    )  # fmt: skip
