"""MiniCPM-V 2.6 to 4.5: an image is shown whole, and a large one in slices too. Each has as many vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.media.processors.base import FILE, HALF, Size, outer, settings, token, vision
from thalweg.media.processors.minicpm_v import MiniCpmV

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs


class MiniCpmV2(MiniCpmV, frozen=True, kw_only=True):
    merge: int = 1
    queries: int
    """Vectors of a view."""

    def _each(self, size: Size) -> int:
        return self.queries

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.read_views(self, views)


def minicpm_v_2(config: Config, options: Config) -> MiniCpmV2:
    seen, around = vision(config), outer(config)
    patch = integer(seen, "patch_size", high=1 << 10, default=14)
    mine = {
        "image_mean": options.get("norm_mean"),
        "image_std": options.get("norm_std"),
        "do_rescale": options.get("do_rescale"),
    }
    sliced = flag(options, "slice_mode", True)
    return MiniCpmV2(
        token=token(config), patch=patch, side=integer(seen, "image_size", default=980) // patch,
        marker="(<image>./</image>)", queries=integer(around, "query_num", high=1 << 12, default=64),
        edge=integer(options, "scale_resolution", high=1 << 13, default=448, where=FILE),
        most=integer(options, "max_slice_nums", high=64, default=9, where=FILE) if sliced else 1,
        number="<image_id>{}</image_id>" if flag(options, "use_image_id", False) else "", **settings(mine, mean=HALF, std=HALF),
    )  # fmt: skip
