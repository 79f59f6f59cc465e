"""DeepSeek-VL2: the whole image on a square, then the image on the rectangle of squares that shows it best. Both are filled up
with a colour. A learned vector ends each row of vectors, and another one stands between both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, integer, section
from thalweg.errors import CheckpointError
from thalweg.media.processors.base import FILE, HALF, ImageProcessor, Size, View, check_shape, outer, settings, token, vision

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs


class DeepseekVl2(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """Pixels of a square."""
    merge: int
    rectangles: tuple[Size, ...]
    """Pixels, in the order of the files."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        best = self._choose(width, height)
        return tuple(View((_contain((width, height), frame),)) for frame in ((self.side, self.side), best))

    def _choose(self, width: int, height: int) -> Size:
        """The rectangle with the most pixels of the image, of equal ones that with the fewest others."""
        most, least, best = 0, float("inf"), self.rectangles[0]
        for wide, high in self.rectangles:
            scale = min(wide / width, high / height)
            shown = min(int(width * scale) * int(height * scale), width * height)
            wasted = wide * high - shown
            if shown > most or (shown == most and wasted < least):
                most, least, best = shown, wasted, (wide, high)
        return best

    @property
    def edge(self) -> int:
        """Vectors along the edge of a square."""
        return -(-(self.side // self.patch) // self.merge)

    def _tiling(self, size: Size) -> Size:
        wide, high = self._choose(*size)
        return wide // self.side, high // self.side

    def count(self, size: Size) -> int:
        (columns, rows), edge = self._tiling(size), self.edge
        return edge * (edge + 1) + 1 + rows * edge * (columns * edge + 1)

    def text(self, size: Size, token: str) -> str:
        return token * self.count(size)

    def arrange(self, size: Size) -> np.ndarray:
        """i32[count]: the vectors of placeholders, with the learned ones numbered behind those of squares."""
        import numpy as np

        (columns, rows), edge = self._tiling(size), self.edge
        total = (1 + columns * rows) * edge**2
        whole = np.arange(edge**2).reshape(edge, edge)
        tiles = np.arange(edge**2, total).reshape(rows, columns, edge, edge).transpose(0, 2, 1, 3)
        parts = [np.pad(each, ((0, 0), (0, 1)), constant_values=total) for each in (whole, tiles.reshape(rows * edge, -1))]
        return np.concatenate([parts[0].reshape(-1), [total + 1], parts[1].reshape(-1)]).astype(np.int32)

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        (columns, rows), side = self._tiling(size), self.side
        whole, image = (self._fill(view, frame) for view, frame in zip(views, ((1, 1), (columns, rows)), strict=True))
        tiles = [image[y : y + side, x : x + side] for y in range(0, rows * side, side) for x in range(0, columns * side, side)]
        result = patches.padded_squares(self, [whole, *tiles])
        result.mix = self.arrange(size)[:, None]
        return result

    def _fill(self, view: np.ndarray, squares: Size) -> np.ndarray:
        """The image in the middle of a rectangle of squares."""
        import numpy as np

        result = np.empty((squares[1] * self.side, squares[0] * self.side, 3), np.uint8)
        result[:] = [int(shade * 255) for shade in self.mean]
        high, wide, _ = view.shape
        top, left = (round((space - used) * 0.5) for space, used in zip(result.shape[:2], (high, wide), strict=True))
        result[top : top + high, left : left + wide] = view
        return result


def _contain(size: Size, frame: Size) -> Size:
    """The size of an image within a frame, as of PIL's `ImageOps.contain`."""
    ours, theirs = size[0] / size[1], frame[0] / frame[1]
    if ours > theirs:
        return frame[0], round(size[1] / size[0] * frame[0])
    return (round(size[0] / size[1] * frame[1]), frame[1]) if ours < theirs else frame


def deepseek_vl2(config: Config, options: Config) -> DeepseekVl2:
    """Each image is cut, however many a prompt has: the authors' code cuts none of three or more."""
    seen, joins = vision(config), section(outer(config), "projector_config")
    side = integer(seen, "image_size", high=1 << 14, default=384)
    listed = options.get("candidate_resolutions") or outer(config).get("candidate_resolutions") or [[side, side]]
    fits = isinstance(listed, list) and all(
        isinstance(each, list) and len(each) == 2 and all(type(n) is int and n > 0 and n % side == 0 for n in each)
        for each in listed
    )
    if not fits:
        raise CheckpointError(f"{FILE}: candidate_resolutions: must be pairs of multiples of {side}, not {listed!r:.80}")
    return DeepseekVl2(
        token=token(config), patch=integer(seen, "patch_size", high=1 << 10, default=14), side=side,
        merge=integer(joins, "downsample_ratio", high=16, default=2), rectangles=tuple((each[0], each[1]) for each in listed),
        **settings(options, mean=HALF, std=HALF),
    )  # fmt: skip
