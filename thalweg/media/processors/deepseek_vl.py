"""DeepSeek-VL and Janus: one square, which a colour fills up where the image is no square."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from thalweg.checkpoint.config import BESIDE, Config, flag, integer
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import (
    FILE,
    ImageProcessor,
    Size,
    View,
    check_shape,
    only,
    outer,
    read_size,
    settings,
    token,
    vision,
)

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class DeepseekVL(ImageProcessor, frozen=True, kw_only=True):
    side: int
    least: int
    """Pixels of the shorter edge, at least."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        scale = self.side / max(width, height)
        wide, high = (max(round(edge * scale), self.least) for edge in (width, height))
        return (View(((wide, high),)),)

    def count(self, size: Size) -> int:
        return (self.side // self.patch) ** 2

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        import numpy as np

        from thalweg.media import patches

        (view,) = views
        high, wide, _ = view.shape
        top, left = (self.side - high) // 2, (self.side - wide) // 2
        whole = np.empty((self.side, self.side, 3), np.uint8)
        whole[:] = [int(shade * 255) for shade in self.mean]
        whole[top : top + high, left : left + wide] = view
        return patches.square(self, [whole], False, False)


class Janus(DeepseekVL, frozen=True, kw_only=True):
    """Tokens before and after an image are written with it."""

    def text(self, size: Size, token: str) -> str:
        return f"<begin_of_image>{super().text(size, token)}<end_of_image>"


def janus(config: Config, said: Config) -> Janus:
    seen, around = {"image_size": 384, **vision(config)}, outer(config)
    around = {**around, "image_token_id": token(config, 100_581), "vision_config": seen}
    return Janus(**msgspec.structs.asdict(deepseek_vl({**config, BESIDE: around}, said)))


def deepseek_vl(config: Config, said: Config) -> DeepseekVL:
    seen = vision(config)
    side = integer(seen, "image_size", default=224)
    only(read_size(said, "size", ("height", "width"), {"height": 384}).values(), side)
    if not flag(said, "do_pad", True):
        raise UnsupportedModelError(f"{FILE}: do_pad: false is not supported by this version")
    return DeepseekVL(
        token=token(config, 100_015), patch=integer(seen, "patch_size", default=16), side=side,
        least=integer(said, "min_size", high=side, default=14, where=FILE), **settings(said, mean=MEAN, std=STD),
    )  # fmt: skip
