"""InternVL, Aya Vision and Command A Vision: an image is cut into as many squares as have its ratio best, and shown whole in
one more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thalweg.checkpoint.config import Config, flag, integer, text
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import (
    ImageProcessor,
    Size,
    View,
    check_shape,
    closest,
    cut,
    edge,
    only,
    outer,
    read_size,
    settings,
    shuffle,
    token,
    vision,
)

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class TiledImages(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """Pixels of a tile."""
    least: int
    most: int
    """Tiles."""
    merge: int
    """Patches along each edge that become one vector."""
    classes: bool = True
    """A vector of the whole tile is computed before those of its patches."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        columns, rows = self.tiling(width, height)
        side, whole = self.side, View(((self.side, self.side),))
        if columns * rows == 1:
            return (whole,)
        return (*cut(((side * columns, side * rows),), columns, rows, side), whole)

    def tiling(self, width: int, height: int) -> Size:
        """Columns and rows."""
        return closest(width, height, self.side, self.least, self.most)

    @property
    def each(self) -> int:
        """Vectors of a tile."""
        return (self.side // self.patch // self.merge) ** 2

    def count(self, size: Size) -> int:
        return len(self.views(*size)) * self.each

    def text(self, size: Size, token: str) -> str:
        return f"<img>{token * self.count(size)}</img>"

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.square(self, views, self.classes, False, self.merge)


class AyaVision(TiledImages, frozen=True, kw_only=True):
    """Aya Vision: each tile has its number before it."""

    classes: bool = False

    def text(self, size: Size, token: str) -> str:
        last = len(self.views(*size))
        names = [*(f"TILE_{i}" for i in range(1, last)), "TILE_GLOBAL"]
        return "<|START_OF_IMG|>" + "".join(name + token * self.each for name in names) + "<|END_OF_IMG|>"


class CommandAVision(TiledImages, frozen=True, kw_only=True):
    """Command A Vision: a line ends behind each tile. As few pixels as possible are added, or taken off."""

    classes: bool = False

    def tiling(self, width: int, height: int) -> Size:
        grids = [(x, y) for x in range(1, self.most + 1) for y in range(1, self.most + 1) if x * y <= self.most]
        grids.sort(key=lambda grid: grid[0] * grid[1])
        scales = [min(x * self.side / width, y * self.side / height) for x, y in grids]
        if max(scales) < 1:
            return grids[scales.index(max(scales))]
        return grids[scales.index(min(scale for scale in scales if scale >= 1))]

    def text(self, size: Size, token: str) -> str:
        lines = (token * self.each + "<|IMG_LINE_BREAK|>") * len(self.views(*size))
        return f"<|START_OF_IMG|>{lines}<|END_OF_IMG|>"


def cohere2_vision(config: Config, options: Config) -> CommandAVision:
    merge = integer(outer(config), "downsample_factor", high=16, default=2)
    cuts = {} if flag(options, "crop_to_patches", True) else {"most": 1}
    return CommandAVision(token=token(config, 255_036), **tile_settings(config, options, 512, 16) | {"merge": merge} | cuts)


def aya_vision(config: Config, options: Config) -> AyaVision:
    """Tiles whatever `crop_to_patches` says, as above."""
    if text(outer(config), "vision_feature_select_strategy", "full") != "full":
        raise UnsupportedModelError("config.json: vision_feature_select_strategy: this encoder only has vectors of patches")
    more = tile_settings(config, options, 384, 14) | {"merge": integer(outer(config), "downsample_factor", high=16, default=2)}
    return AyaVision(token=token(config, 255_036), marker="<image>", **more)


def internvl(config: Config, options: Config) -> TiledImages:
    """Tiles whatever `crop_to_patches` says, as its processor in transformers does."""
    return TiledImages(token=token(config, 151_667), **tile_settings(config, options, 448, 14))


def qianfan_ocr(config: Config, options: Config) -> TiledImages:
    """Its template has a special marker for an image."""
    return TiledImages(token=token(config, 151_667), marker="<image>", **tile_settings(config, options, 448, 14))


def internvl_chat(config: Config, options: Config) -> TiledImages:
    """InternVL's own format: how images are cut is said in the model's configuration."""
    keys = ("dynamic_image_size", "force_image_size", "max_dynamic_patch", "min_dynamic_patch", "pad2square", "use_thumbnail")
    around = {**outer(config), **{key: options[key] for key in keys if key in options}}
    if flag(around, "pad2square", False) or not flag(around, "use_thumbnail", True):
        raise UnsupportedModelError("config.json: pad2square, and tiles without the whole image, are not supported")
    cuts = (1, 1)
    if flag(around, "dynamic_image_size", True):
        cuts = (integer(around, "min_dynamic_patch", default=1), integer(around, "max_dynamic_patch", high=64, default=12))
    side = edge(vision(config), "image_size", 448)
    only((integer(around, "force_image_size", default=side),), side)
    result = {**tile_settings(config, options, side, 14), "least": cuts[0], "most": cuts[1]}
    return TiledImages(token=token(config), marker="<image>", **result)


def tile_settings(config: Config, options: Config, side: int, patch: int) -> dict[str, Any]:
    """side, patch: where the file does not say."""
    seen = vision(config)
    side, patch = (edge(seen, key, default) for key, default in (("image_size", side), ("patch_size", patch)))
    size = read_size(options, "size", ("height", "width"), {"height": side, "width": side})
    only(size.values(), side)
    most = integer(options, "max_patches", high=64, default=12)
    return {
        "patch": patch, "side": side, "least": integer(options, "min_patches", high=most, default=1), "most": most,
        "merge": merge_size(config), **settings(options, mean=MEAN, std=STD),
    }  # fmt: skip


def merge_size(config: Config) -> int:
    """Patches along an edge of those that become one vector."""
    return shuffle(outer(config), "downsample_ratio")
