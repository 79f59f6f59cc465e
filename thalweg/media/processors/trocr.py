"""TrOCR: one square, which is the whole prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg.checkpoint.config import Config, integer
from thalweg.media.processors.base import (
    BILINEAR,
    HALF,
    ImageProcessor,
    Size,
    View,
    check_shape,
    edge,
    only,
    outer,
    read_size,
    settings,
    vision,
)

if TYPE_CHECKING:
    import numpy as np


class Trocr(ImageProcessor, frozen=True, kw_only=True):
    """`token` is the decoder's first."""

    side: int

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        return (View(((self.side, self.side),)),)

    def count(self, size: Size) -> int:
        return 1

    def source_array(self, views: Sequence[np.ndarray], size: Size, position: int) -> np.ndarray:
        import numpy as np

        from thalweg.media import patches

        value = patches.cut(patches.normalize(views[0], self), self.patch)
        head = np.zeros((1, value.shape[1]), np.float32)
        head[0, :3] = 1, 1, position
        return np.concatenate([head, value])


def trocr(config: Config, options: Config) -> Trocr:
    seen, key = vision(config), "decoder_start_token_id"
    side = edge(seen, "image_size", 224)
    only(read_size(options, "size", ("height", "width"), {"height": 224, "width": 224}).values(), side)
    around = outer(config)
    first = integer(around if around.get(key) is not None else config, key, low=0, default=2)
    return Trocr(
        token=first, patch=edge(seen, "patch_size", 16), side=side, source=True, whole_prompt=True,
        **settings(options, mean=HALF, std=HALF, resample=BILINEAR),
    )  # fmt: skip
