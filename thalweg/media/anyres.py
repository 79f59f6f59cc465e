"""Vectors of an image's tiles as rows of the whole image, each with its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from thalweg.media.processors.base import Size
    from thalweg.media.processors.llava_next import LlavaNext

F32, I32 = np.float32, np.int32


def pack_image_features(p: LlavaNext, size: Size) -> tuple[np.ndarray, np.ndarray | None]:
    """`PatchInputs.mix` and `part`: the vectors of the whole image, then the rows of the tiles' vectors, each followed by the
    learned end-of-row vector. A grid with too many rows or columns is resized by bilinear interpolation."""
    each = p.each
    top, rows, left, columns = p.rows(size)
    high, wide = p.grid_size(size)
    base = np.arange(each**2, dtype=I32)
    end = each**2 * len(p.views(*size))

    def at(down: np.ndarray, across: np.ndarray) -> np.ndarray:
        """The vector of a row and a column of all tiles."""
        tile = 1 + down // each * p.across(size) + across // each
        found: np.ndarray = tile * each**2 + down % each * each + across % each
        return found.astype(I32)

    if (high, wide) == (rows, columns):
        found = at(top + np.arange(rows)[:, None], left + np.arange(columns)[None])
        mix = np.concatenate([found, np.full((rows, 1), end, I32)], 1).reshape(-1)
        return np.concatenate([base, mix])[:, None], None
    (down, low, over), (across, first, beyond) = _between(rows, high), _between(columns, wide)
    near = [(y, x) for y in (down, low) for x in (across, first)]
    share = [(1 - over, 1 - beyond), (1 - over, beyond), (over, 1 - beyond), (over, beyond)]
    mix = np.full((high, wide + 1, 4), end, I32)
    part = np.zeros((high, wide + 1, 4), F32)
    part[:, wide, 0] = 1
    for i, ((y, x), (v, u)) in enumerate(zip(near, share, strict=True)):
        mix[:, :wide, i] = at(top + y[:, None], left + x[None])
        part[:, :wide, i] = v[:, None] * u[None]
    ones = np.zeros((base.size, 4), F32)
    ones[:, 0] = 1
    return np.concatenate([np.repeat(base[:, None], 4, 1), mix.reshape(-1, 4)]), np.concatenate([ones, part.reshape(-1, 4)])


def _between(size: int, to: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of `size` in a row made into `to`: the nearest before, the nearest after, and the share of the latter."""
    where = np.maximum((np.arange(to, dtype=F32) + F32(0.5)) * (F32(size) / F32(to)) - F32(0.5), F32(0))
    low = np.minimum(where.astype(np.int64), size - 1)
    return low, np.minimum(low + 1, size - 1), (where - low).astype(F32)


def halve(side: int, last: bool) -> tuple[np.ndarray, np.ndarray]:
    """`PatchInputs.mix` and `part` of a square of side x side vectors made half as long and wide (rounded up) by bilinear
    interpolation. last: the learned end-of-row vector follows."""
    low, high, over = _between(side, (side + 1) // 2)
    near = [
        (y, x, v[:, None] * u[None]) for y, v in ((low, 1 - over), (high, over)) for x, u in ((low, 1 - over), (high, over))
    ]
    mix = np.stack([(y[:, None] * side + x[None]).reshape(-1) for y, x, _ in near], 1).astype(I32)
    part = np.stack([share.reshape(-1) for _, _, share in near], 1).astype(F32)
    if last:
        mix = np.concatenate([mix, np.full((1, 4), side**2, I32)])
        part = np.concatenate([part, np.array([[1, 0, 0, 0]], F32)])
    return mix, part
