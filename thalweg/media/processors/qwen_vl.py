"""Qwen2.5-VL and Qwen3-VL: images keep their ratio between two numbers of pixels. Four patches become one vector, and its
position has a row and a column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.checkpoint.config import BESIDE, Config, integer
from thalweg.media.processors.base import (
    HALF,
    ImageProcessor,
    Size,
    View,
    check_shape,
    edge,
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


class QwenVL(ImageProcessor, frozen=True, kw_only=True):
    least: int
    most: int
    """Pixels."""
    merge: int
    frames: int
    """Pictures that a patch goes through: an image is shown so often."""
    head_dim: int
    window: int = 0
    """Vectors along an edge of a window; 0 = no layer sees windows."""
    side: int = 0
    """Of the learned table of places, which is stretched over the image; 0 = there is none."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        unit = self.patch * self.merge
        wide, high = (round(edge / unit) * unit for edge in (width, height))
        if wide * high > self.most:
            less = math.sqrt(width * height / self.most)
            wide, high = (max(unit, math.floor(edge / less / unit) * unit) for edge in (width, height))
        elif wide * high < self.least:
            more = math.sqrt(self.least / (width * height))
            wide, high = (math.ceil(edge * more / unit) * unit for edge in (width, height))
        return (View(((wide, high),)),)

    def grid(self, size: Size) -> Size | None:
        width, height = self.first_view_size(size)
        unit = self.patch * self.merge
        return width // unit, height // unit

    def count(self, size: Size) -> int:
        width, height = self.first_view_size(size)
        return width * height // (self.patch * self.merge) ** 2

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.blocks(self, views)


class Exaone45(QwenVL, frozen=True, kw_only=True):
    """Positions of its vectors follow each other, as those of text do."""

    def grid(self, size: Size) -> None:
        return None


class Glm4v(QwenVL, frozen=True, kw_only=True):
    """Sizes are those of films of as many pictures as a patch goes through. Places are stretched by cubic curves."""

    cubic: bool = True

    def views(self, width: int, height: int) -> tuple[View, ...]:
        unit, pictures = self.patch * self.merge, self.frames
        width, height = self.enlarge(width, height, unit)
        check_shape(width, height)
        wide, high = (round(edge / unit) * unit for edge in (width, height))
        if pictures * wide * high > self.most:
            less = math.sqrt(pictures * height * width / self.most)
            wide, high = (max(unit, math.floor(edge / less / unit) * unit) for edge in (width, height))
        elif pictures * wide * high < self.least:
            more = math.sqrt(self.least / (pictures * height * width))
            wide, high = (math.ceil(edge * more / unit) * unit for edge in (width, height))
        return (View(((wide, high),)),)

    def enlarge(self, width: int, height: int, unit: int) -> Size:
        """The size of an image that is too small for one vector."""
        if min(width, height) >= unit:
            return width, height
        more = max(unit / height, unit / width)
        return int(width * more), int(height * more)

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        result = patches.blocks(msgspec.structs.replace(self, side=0), views)
        if not self.side:
            return result
        rows, columns = (edge // self.patch for edge in views[0].shape[:2])
        result.place, result.share = patches.spread(
            patches.merge_order(rows, columns, self.merge), rows, columns, self.side, self.cubic
        )  # fmt: skip
        return result


class PaddleOCR(Glm4v, frozen=True, kw_only=True):
    """Places are stretched by straight lines."""

    cubic: bool = False

    def enlarge(self, width: int, height: int, unit: int) -> Size:
        if height < unit:
            width, height = round(width * unit / height), unit
        if width < unit:
            width, height = unit, round(height * unit / width)
        return width, height


def keye(config: Config, options: Config) -> PaddleOCR:
    return paddleocr_vl(config, options, 151_655, (HALF, HALF))


def paddleocr_vl(config: Config, options: Config, default: int = 100_295, shades: Any = (MEAN, STD)) -> PaddleOCR:
    """default: of `image_token_id`. shades: mean and standard deviation, where the file has none."""
    seen = vision(config)
    size = read_size(
        options, "size", ("shortest_edge", "longest_edge"), {"shortest_edge": 384 * 384, "longest_edge": 1536 * 1536}
    )
    patch = edge(seen, "patch_size", 14)
    return PaddleOCR(
        token=token(config, default), patch=patch, merge=integer(seen, "spatial_merge_size", high=16, default=2), frames=1,
        least=integer(options, "min_pixels", default=size.get("shortest_edge", 384 * 384)),
        most=integer(options, "max_pixels", default=size.get("longest_edge", 1536 * 1536)),
        side=edge(seen, "image_size", 384) // patch,
        head_dim=integer(seen, "hidden_size", default=1152) // integer(seen, "num_attention_heads", default=16),
        **settings(options, mean=shades[0], std=shades[1]),
    )  # fmt: skip


def glm4v(config: Config, options: Config) -> Glm4v:
    seen = vision(config)
    size = read_size(
        options, "size", ("shortest_edge", "longest_edge"), {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15_000}
    )
    patch = edge(seen, "patch_size", 14)
    return Glm4v(
        token=token(config, 151_343), patch=patch, merge=integer(seen, "spatial_merge_size", high=16, default=2),
        frames=integer(seen, "temporal_patch_size", high=16, default=2), least=size.get("shortest_edge", 112 * 112),
        most=size.get("longest_edge", 28 * 28 * 15_000), side=edge(seen, "image_size", 336) // patch,
        head_dim=integer(seen, "hidden_size", default=1536) // integer(seen, "num_heads", default=12),
        **settings(options, mean=MEAN, std=STD),
    )  # fmt: skip


def glm_ocr(config: Config, options: Config) -> Glm4v:
    seen, around = {"hidden_size": 1024, "num_heads": 16, **vision(config)}, outer(config)
    result = glm4v({**config, BESIDE: {**around, "image_token_id": token(config, 59_280), "vision_config": seen}}, options)
    return msgspec.structs.replace(result, side=0)


def qwen2_vl(config: Config, options: Config) -> QwenVL:
    """Without windows. `hidden_size` there is the encoder's output size."""
    seen = vision(config)
    return _build(config, options, {**seen, "hidden_size": integer(seen, "embed_dim", default=1280)}, 28 * 28 * 1280, window=0)


def ernie4_5_vl(config: Config, options: Config) -> QwenVL:
    """A patch goes through one picture."""
    around = outer(config)
    seen = {"hidden_size": 1280, "patch_size": 14, **vision(config), "temporal_patch_size": 1}
    key = "image_token_id" if around.get("image_token_id") is not None else "im_patch_id"
    around = {**around, "image_token_id": integer(around, key, low=0, default=100_295), "vision_config": seen}
    return _build({**config, BESIDE: around}, options, seen, 28 * 28 * 6177, window=0)


def exaone4_5(config: Config, options: Config) -> Exaone45:
    seen, around = {"hidden_size": 3584, **vision(config)}, outer(config)
    result = qwen2_5_vl({**config, BESIDE: {**around, "image_token_id": token(config, 67), "vision_config": seen}}, options)
    return Exaone45(**msgspec.structs.asdict(result))


def qwen2_5_vl(config: Config, options: Config) -> QwenVL:
    seen = vision(config)
    patch, merge = integer(seen, "patch_size", default=14), integer(seen, "spatial_merge_size", high=16, default=2)
    return _build(config, options, seen, 28 * 28 * 1280, window=integer(seen, "window_size", default=112) // patch // merge)


def qwen3_vl(config: Config, options: Config) -> QwenVL:
    seen = vision(config)
    return _build(
        config, options, seen, 28 * 28 * 1280, side=math.isqrt(integer(seen, "num_position_embeddings", default=2304))
    )


def _build(config: Config, options: Config, seen: Config, most: int, **more: Any) -> QwenVL:
    size = read_size(options, "size", ("shortest_edge", "longest_edge"), {"shortest_edge": 56 * 56, "longest_edge": most})
    hidden = integer(seen, "hidden_size", default=1280 if "window" in more else 1152)
    heads = integer(seen, "num_heads", default=16)
    return QwenVL(
        token=token(config, 151_655), patch=integer(seen, "patch_size", default=14 if "window" in more else 16),
        merge=integer(seen, "spatial_merge_size", high=16, default=2),
        frames=integer(seen, "temporal_patch_size", high=16, default=2),
        least=integer(options, "min_pixels", default=size.get("shortest_edge", 56 * 56)),
        most=integer(options, "max_pixels", default=size.get("longest_edge", most)),
        head_dim=hidden // heads, **more, **settings(options, mean=MEAN, std=STD),
    )  # fmt: skip
