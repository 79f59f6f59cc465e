"""Gemma 3: every image is one square of as many vectors, all of which see each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import (
    BILINEAR,
    FILE,
    HALF,
    ImageProcessor,
    Size,
    View,
    check_shape,
    only,
    outer,
    read_size,
    settings,
    vision,
)
from thalweg.media.processors.base import token as token_of

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

BEGIN, END = "<start_of_image>", "<end_of_image>"


class Gemma3(ImageProcessor, frozen=True, kw_only=True):
    side: int
    vectors: int

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        return (View(((self.side, self.side),)),)

    def count(self, size: Size) -> int:
        return self.vectors

    def text(self, size: Size, token: str) -> str:
        return f"\n\n{BEGIN}{token * self.vectors}{END}\n\n"

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        result = patches.square(self, views, False, False)
        result.keep = patches.merge_order(*(self.side // self.patch,) * 2, self.side // self.patch // math.isqrt(self.vectors))
        return result


def gemma3(config: Config, options: Config) -> Gemma3:
    seen = vision(config)
    if flag(options, "do_pan_and_scan", False):
        raise UnsupportedModelError(f"{FILE}: do_pan_and_scan: images cut into several are not supported by this version")
    side = integer(seen, "image_size", default=896)
    size = read_size(options, "size", ("height", "width"), {"height": side, "width": side})
    only(size.values(), side)
    return Gemma3(
        token=token_of(config, 262_144), patch=integer(seen, "patch_size", default=14), side=side,
        vectors=integer(outer(config), "mm_tokens_per_image", default=256), marker=BEGIN, together=True,
        **settings(options, mean=HALF, std=HALF, resample=BILINEAR),
    )  # fmt: skip
