"""Ovis 2.5 and 2.6: images keep their ratio between two numbers of pixels. A learned vector stands before an image, and one
behind it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError
from thalweg.media.processors.base import FILE, HALF, Size, edge, outer, settings, token, vision
from thalweg.media.processors.qwen_vl import Glm4v

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

PAD, BEGIN, END = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"
"""Tokens of Qwen that occupy the places of an image and of the vectors around it. The authors' code has negative ids there."""
MARKS = {"image_token_id": PAD, "image_start_token_id": BEGIN, "image_end_token_id": END}
"""Their ids, by key."""
LEAST, MOST = 448 * 448, 1344 * 1792
"""Pixels, unless the operator names others."""


class Ovis25(Glm4v, frozen=True, kw_only=True):
    def enlarge(self, width: int, height: int, unit: int) -> Size:
        if min(width, height) >= unit:
            return width, height
        if height < width:
            return round(unit / height * width), unit
        return unit, round(unit / width * height)

    def grid(self, size: Size) -> None:
        """Positions have one axis."""

    def count(self, size: Size) -> int:
        return super().count(size) + 2

    def text(self, size: Size, token: str) -> str:
        return f"{BEGIN}{token * (self.count(size) - 2)}{END}"

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        import numpy as np

        result = super().preprocess(views, size)
        last = len(result.keep) // self.merge**2
        result.mix = np.array([last, *range(last), last + 1], np.int32)[:, None]
        return result


def count_flat(options: Config) -> int:
    """`num_patches`. -1: the size of the learned table follows from that of images. options: `vit_config`."""
    return integer(options, "num_patches", low=-1, high=1 << 20, default=-1)


def count_places(options: Config) -> int:
    """Rows of the learned table, which is a square. options: `vit_config`."""
    flat = count_flat(options)
    if flat > 0 and isqrt(flat) ** 2 != flat:
        raise CheckpointError(f"config.json: vit_config: num_patches: {flat} is not a square number")
    return flat if flat > 0 else (edge(options, "image_size", 512) // integer(options, "patch_size", default=16)) ** 2


def ovis2_5(config: Config, options: Config) -> Ovis25:
    seen, around = vision(config), outer(config)
    others = [integer(around, key, low=0) for key in ("image_start_token_id", "image_end_token_id")]
    least = integer(options, "min_pixels", high=1 << 28, default=LEAST, where=FILE)
    most = integer(options, "max_pixels", high=1 << 28, default=MOST, where=FILE)
    if least > most:
        raise CheckpointError(f"{FILE}: min_pixels: {least} is more than max_pixels, {most}")
    whole = flag(seen, "preserve_original_pe", True)
    return Ovis25(
        token=token(config), others=tuple(others), marker="<image>", patch=integer(seen, "patch_size", default=16),
        merge=integer(seen, "hidden_stride", high=16, default=2), frames=1, least=least, most=most,
        head_dim=integer(seen, "hidden_size", default=1024) // integer(seen, "num_attention_heads", default=16),
        side=isqrt(count_places(seen)) if whole else 0, **settings(options, mean=HALF, std=HALF),
    )  # fmt: skip
