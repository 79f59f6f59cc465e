"""MiniCPM-V 4.7: as 4.6, with positions along three axes. An image, its slices and the tokens around them lie on one canvas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from thalweg.checkpoint.config import Config, integer
from thalweg.media.processors.base import Frame, Size, outer
from thalweg.media.processors.minicpm_v import MiniCpmV, minicpm_v

if TYPE_CHECKING:
    import numpy as np

KEYS = ("image_end_id", "slice_start_id", "slice_end_id", "newline_id")
"""Keys of ids that, directly behind an image, belong to it."""


class MiniCpmV47(MiniCpmV, frozen=True, kw_only=True):
    behind: tuple[int, ...]
    """Ids that, directly behind an image, belong to it."""

    def _vectors(self, size: Size) -> Size:
        """Columns and rows of the vectors of a view."""
        unit = self.patch * self.merge
        return size[0] // unit, size[1] // unit

    def frame(self, size: Size, ids: Sequence[int], positions: np.ndarray) -> Frame:
        import numpy as np

        first, last = int(positions[0]) - 1, int(positions[-1]) + 1  # the token that begins an image has a place, too
        while last < len(ids) and ids[last] in self.behind:
            last += 1
        columns, rows = self._grid(*size)
        slices = columns * rows if columns * rows > 1 else 0
        whole, part = self._vectors(self.first_view_size(size)), self._vectors(self._slice(*size))
        canvas = (columns * part[0], rows * part[1]) if slices else whole
        axes = np.zeros((last - first, 3), np.int32)
        axes[0, 1:] = -1
        at = 1
        axes[at : at + whole[0] * whole[1], 1:] = _spread(whole, canvas)
        at += whole[0] * whole[1]
        if at < len(axes):
            axes[at, 1:] = canvas[1], canvas[0]
        for k in range(slices):
            down, across = k // columns * part[1], k % columns * part[0]
            begin = int(positions[whole[0] * whole[1] + k * part[0] * part[1]]) - first
            if k and begin - at > 2:  # the end of a row of slices, behind the token that ends a slice
                axes[at + 1 : begin - 1, 1:] = k // columns * part[1] - 1, canvas[0]
            axes[begin - 1, 1:] = down, across
            at = begin + part[0] * part[1]
            axes[begin:at, 1:] = _spread(part, part) + np.array([down, across])
            if at < len(axes):
                axes[at, 1:] = down + part[1] - 1, across + part[0] - 1
        return Frame(lead=1, tail=last - int(positions[-1]) - 1, axes=axes, extent=max(canvas) + 1)


def _spread(vectors: Size, canvas: Size) -> np.ndarray:
    """i32[vectors, 2]: rows and columns of the canvas, over which the vectors are spread evenly."""
    import numpy as np

    across, down = (_steps(size, n) for size, n in zip(canvas, vectors, strict=True))
    return np.stack([np.repeat(down, len(across)), np.tile(across, len(down))], 1)


def _steps(size: int, count: int) -> np.ndarray:
    """i32[count] from 0 to size - 1, in the float32 arithmetic of `torch.linspace`, which counts from both ends."""
    import numpy as np

    if count == 1:
        return np.zeros(1, np.int32)
    step, each = np.float32(size - 1) / np.float32(count - 1), np.arange(count, dtype=np.float32)
    upper = np.float32(size - 1) - step * (np.float32(count - 1) - each)
    result: np.ndarray = np.rint(np.where(each < count // 2, step * each, upper)).astype(np.int32)
    return result


def minicpm_v_4_7(config: Config, options: Config) -> MiniCpmV47:
    around = outer(config)
    behind = tuple(integer(around, key, low=0) for key in KEYS)
    return MiniCpmV47(**msgspec.structs.asdict(minicpm_v(config, options)), behind=behind)
