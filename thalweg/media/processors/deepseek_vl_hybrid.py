"""DeepSeek-VL (7B): an image on a large square, which a colour fills up, and this square made smaller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from thalweg.checkpoint.config import Config, integer, section
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import FILE, Size, View, check_shape, edge, only, outer, read_size, three
from thalweg.media.processors.deepseek_vl import MEAN, STD, DeepseekVL, deepseek_vl

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs


class DeepseekVLHybrid(DeepseekVL, frozen=True, kw_only=True):
    """`side` is that of the smaller square."""

    separate: bool = True
    large: int
    """Pixels of the large square."""
    large_mean: tuple[float, float, float]
    large_std: tuple[float, float, float]

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        scale = self.large / max(width, height)
        wide, high = (max(round(edge * scale), self.least) for edge in (width, height))
        left, top = (self.large - wide) // 2, (self.large - high) // 2
        red, green, blue = (int(shade * 255) for shade in self.large_mean)
        box = (-left, -top, self.large - left, self.large - top)
        views = (View(((wide, high),), box, fill=(red, green, blue), after=after) for after in (None, (self.side, self.side)))
        return tuple(views)

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        import numpy as np

        from thalweg.media import patches

        other = msgspec.structs.replace(self, mean=self.large_mean, std=self.large_std)
        large, small = (patches.square(p, [view], False, False) for p, view in zip((other, self), views, strict=True))
        assert large.place is not None
        assert small.place is not None
        result = patches.PatchInputs(
            np.concatenate([large.value, small.value]), [len(large.value), len(small.value)], small.keep,
            np.concatenate([large.place, small.place]),
        )  # fmt: skip
        return result


def deepseek_vl_hybrid(config: Config, options: Config) -> DeepseekVLHybrid:
    result = msgspec.structs.asdict(deepseek_vl(config, options))
    side = edge(section(outer(config), "high_res_vision_config"), "image_size", 1024)
    only(read_size(options, "high_res_size", ("height", "width"), {"height": 1024, "width": 1024}).values(), side)
    if integer(options, "high_res_resample", low=0, high=5, default=result["resample"], where=FILE) != result["resample"]:
        raise UnsupportedModelError(f"{FILE}: high_res_resample: must be that of resample")
    return DeepseekVLHybrid(
        **{**result, "separate": True}, large=side, large_mean=three(options, "high_res_image_mean", MEAN),
        large_std=three(options, "high_res_image_std", STD),
    )  # fmt: skip
