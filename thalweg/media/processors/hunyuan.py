"""Hy4-VL: images keep their ratio between two numbers of pixels, a learned vector ends each row, positions have three axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, integer
from thalweg.media.processors.base import FILE, Size, read_size, settings, token, vision
from thalweg.media.processors.qwen_vl import MEAN, STD, QwenVL

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

EDGES = ("shortest_edge", "longest_edge")
LEAST, MOST = 512 * 512, 2048 * 2048


class Hy4(QwenVL, frozen=True, kw_only=True):
    """The end of a row is one more column."""

    def grid(self, size: Size) -> Size:
        width, height = self.first_view_size(size)
        unit = self.patch * self.merge
        return width // unit + 1, height // unit

    def count(self, size: Size) -> int:
        columns, rows = self.grid(size)
        return columns * rows

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.stretch_rows(self, views[0])


def hy_v4_vl(config: Config, said: Config) -> Hy4:
    """Bicubic, whatever the file says: the authors' code does not read `resample`."""
    seen = vision(config)
    size = read_size(said, "size", EDGES, {EDGES[0]: LEAST, EDGES[1]: MOST})
    patch = integer(seen, "patch_size", default=16)
    return Hy4(
        token=token(config, 120_120), patch=patch, merge=integer(seen, "spatial_merge_size", high=16, default=2), frames=1,
        least=integer(said, "min_pixels", default=size.get(EDGES[0], LEAST), where=FILE),
        most=integer(said, "max_pixels", default=size.get(EDGES[1], MOST), where=FILE), head_dim=0,
        side=integer(seen, "max_image_size", default=2048) // patch,
        **settings({key: value for key, value in said.items() if key != "resample"}, mean=MEAN, std=STD),
    )  # fmt: skip
