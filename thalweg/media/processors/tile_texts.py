"""InternVL's tiles with other texts, or chosen otherwise: H2OVL, NVLM-D and Eagle 2.5."""

from __future__ import annotations

from typing import Any

import msgspec

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import (
    FILE,
    HALF,
    Size,
    View,
    check_shape,
    closest,
    cut,
    edge,
    most_similar,
    only,
    outer,
    read_size,
    settings,
    shuffle,
    token,
    vision,
)
from thalweg.media.processors.tiles import TiledImages, internvl_chat


class H2ovl(TiledImages, frozen=True, kw_only=True):
    """An image is cut twice (multi-scale adaptive cropping). No edge of the second grid divides that of the first."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        first = closest(width, height, self.side, 1, self.most)
        second = closest(width, height, self.side, 3, self.most, other=first)
        tiles = [
            cut(((self.side * columns, self.side * rows),), columns, rows, self.side) if columns * rows > 1 else ()
            for columns, rows in (second, first)
        ]
        return (*tiles[0], *tiles[1], View(((self.side, self.side),)))


class NvlmD(TiledImages, frozen=True, kw_only=True):
    """Each tile has its number before it."""

    def text(self, size: Size, token: str) -> str:
        last = len(self.views(*size))
        names = [*(f"<tile_{i}>" for i in range(1, last)), "<tile_global_thumbnail>"]
        return "<Image>" + "".join(name + token * self.each for name in names) + "</Image>"


class Eagle25(TiledImages, frozen=True, kw_only=True):
    classes: bool = False

    def tiling(self, width: int, height: int) -> Size:
        return most_similar(width, height, self.side, self.least, self.most)


def h2ovl(config: Config, options: Config) -> TiledImages:
    """With `use_msac`, the authors' code cuts the only image of a prompt twice, and each of several once."""
    result = internvl_chat(config, options)
    if not flag(options, "use_msac", flag(outer(config), "use_msac", False)):
        return result
    return H2ovl(**{**msgspec.structs.asdict(result), "single": True})


def nvlm_d(config: Config, options: Config) -> NvlmD:
    return NvlmD(**msgspec.structs.asdict(internvl_chat(config, options)))


def eagle2_5(config: Config, options: Config) -> Eagle25:
    around, seen = outer(config), vision(config)
    side = edge(seen, "image_size", 448)
    for key, value in (("pad_during_tiling", False), ("use_thumbnail", True)):
        if flag(options, key, value) != value:
            raise UnsupportedModelError(f"{FILE}: {key}: only {str(value).lower()} is supported")
    only(read_size(options, "size", ("height", "width"), {"height": side, "width": side}).values(), side)
    cuts: dict[str, Any] = {
        field: integer(options, f"{name}_dynamic_tiles", high=64, default=integer(around, f"{name}_dynamic_patch", default=n))
        for field, name, n in (("least", "min", 1), ("most", "max", 12))
    }  # fmt: skip
    return Eagle25(
        token=token(config, 151_667), patch=edge(seen, "patch_size", 14), side=side, marker="<image>",
        merge=shuffle(around, "downsample_ratio"), number="<image {1}>", numbered="<image-{}>", **cuts,
        **settings(options, mean=HALF, std=HALF),
    )  # fmt: skip
