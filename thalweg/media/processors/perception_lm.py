"""PerceptionLM: an image is shown whole, then in tiles of a canvas that holds it best. Four vectors of patches become their
mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import (
    FILE,
    HALF,
    ImageProcessor,
    Size,
    View,
    check_shape,
    cut,
    outer,
    settings,
    token,
    vision,
)

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs

ENCODERS: Mapping[str, Mapping[str, Any]] = {
    "vit_pe_lang_large_patch14_448": {"embed_dim": 1024, "depth": 23, "class_token": True, "rope_grid_offset": 1.0},
    "vit_pe_lang_gigantic_patch14_448": {"embed_dim": 1536, "depth": 47, "mlp_ratio": 8960 / 1536},
}
"""Name of an encoder -> its settings. The file may name others in `model_args`."""


class PerceptionEncoder(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a Perception Encoder (Bolya et al. 2025, https://arxiv.org/abs/2504.13181)."""

    hidden: int
    layers: int
    heads: int
    inner: int
    patch: int
    side: int
    """Pixels of a square."""
    whole: bool
    """It has a class token."""
    first: float
    """Rotary position of the first row and column."""
    stretch: float
    """Rotary positions from a patch to the next."""
    scaled: bool
    """The output of each part is scaled by channel."""


def read_encoder(config: Config) -> PerceptionEncoder:
    """CheckpointError or UnsupportedModelError."""
    options = vision(config)
    name = text(options, "architecture", "resnet50")
    if name not in ENCODERS:
        raise UnsupportedModelError(f"config.json: vision_config: architecture {name!r:.60}: supported: {', '.join(ENCODERS)}")
    own = options.get("model_args") or {}
    if not isinstance(own, dict):
        raise CheckpointError("config.json: vision_config: model_args: must be an object")
    args = {"num_heads": 16, "mlp_ratio": 4.0, "patch_size": 14, "img_size": 448, "init_values": 0.1, **ENCODERS[name], **own}
    if flag(args, "use_post_transformer_norm", False) or not flag(args, "use_pre_transformer_norm", True):
        raise UnsupportedModelError("config.json: vision_config: model_args: only a norm before the layers is supported")
    side = _edge(args, "img_size", 448)
    if side < integer(args, "patch_size", high=1 << 10):
        raise CheckpointError(f"config.json: vision_config: model_args: img_size: {side} pixels have no patch of patch_size")
    hidden, patch = integer(args, "embed_dim", high=1 << 16), integer(args, "patch_size", high=1 << 10)
    reference = _edge(args, "ref_feat_shape", side // patch)
    return PerceptionEncoder(
        hidden=hidden, layers=integer(args, "depth", high=1 << 10), heads=integer(args, "num_heads", high=1 << 10), patch=patch,
        inner=int(hidden * real(args, "mlp_ratio", 0.01, 100)), side=side, whole=flag(args, "class_token", False),
        first=real(args, "rope_grid_offset", 0, 1 << 10, default=0.0), stretch=reference / (side // patch),
        scaled=args["init_values"] is not None,
    )  # fmt: skip


def _edge(args: Config, key: str, default: int) -> int:
    found = args.get(key, default)
    found = [found] if type(found) is int else found
    if not isinstance(found, list) or not found or any(type(n) is not int or n != found[0] for n in found):
        raise UnsupportedModelError(f"config.json: vision_config: model_args: {key}: {found!r:.40} is no square")
    return int(found[0])


class PerceptionLM(ImageProcessor, frozen=True, kw_only=True):
    side: int
    """Pixels of a tile."""
    most: int
    """Tiles. 0: images are only shown whole."""
    merge: int
    """Vectors along each edge that become one."""
    classes: bool
    """A vector of the whole tile is computed before those of its patches."""
    head_dim: int
    first: float
    """Rotary position of the first row and column."""
    stretch: float
    """Rotary positions from a patch to the next."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        whole, side = View(((self.side, self.side),)), self.side
        if not self.most:
            return (whole,)
        columns, rows = self._tiling(width, height)
        return (whole, *cut(((columns * side, rows * side),), columns, rows, side))

    def _tiling(self, width: int, height: int) -> Size:
        """Columns and rows of the canvas that holds an image and shows its shorter edge largest, or, if none holds it, of the
        largest whose ratio is nearest to the image's and not beyond it. Of equally good ones the last."""
        ratios: dict[float, list[Size]] = {}
        for tiles in range(self.most, 0, -1):
            for columns in (n for n in range(1, tiles + 1) if tiles % n == 0):
                ratios.setdefault(columns / (tiles // columns), []).append((columns, tiles // columns))
        found, best = (0, 0), -1.0
        for columns, rows in (grid for grids in ratios.values() for grid in grids):
            wide, high = columns * self.side, rows * self.side
            if wide >= width and high >= height and (short := _shorter(width, height, wide, high)) >= best:
                found, best = (columns, rows), short
        if found[0]:
            return found
        ratio = width / height
        if ratio >= 1:
            return max(ratios[max(k for k in ratios if k <= ratio)], key=lambda grid: grid[0])
        return max(
            ratios[min((k for k in ratios if k > ratio), key=lambda k: abs(1 / k - 1 / ratio))], key=lambda grid: grid[1]
        )

    @property
    def each(self) -> int:
        """Vectors of a tile."""
        return (self.side // self.patch // self.merge) ** 2

    def count(self, size: Size) -> int:
        return len(self.views(*size)) * self.each

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.rotary_means(self, views)


def _shorter(width: int, height: int, wide: int, high: int) -> float:
    """The shorter edge of an image on a canvas."""
    scale, ratio = min(wide / width, high / height), width / height
    return int(scale * width / ratio) if ratio > 1 else (scale * height if ratio == 1 else int(scale * height * ratio))


def perception_lm(config: Config, options: Config) -> PerceptionLM:
    encoder, merge = read_encoder(config), integer(outer(config), "projector_pooling_ratio", high=16, default=1)
    if flag(outer(config), "vision_use_cls_token", True) != encoder.whole:
        raise UnsupportedModelError(
            "config.json: vision_use_cls_token: must be true if the encoder has a class token, else false"
        )
    if integer(options, "tile_size", default=448, where=FILE) != encoder.side:
        raise UnsupportedModelError(f"{FILE}: tile_size: the encoder requires squares of {encoder.side} pixels")
    if encoder.side // encoder.patch % merge:
        raise CheckpointError(f"config.json: projector_pooling_ratio: {merge} must divide the patches along an edge")
    tiles = text(options, "vision_input_type", "thumb+tile") == "thumb+tile"
    return PerceptionLM(
        token=token(config, 128_002), marker="<|image|>", patch=encoder.patch, side=encoder.side, merge=merge,
        classes=encoder.whole,
        most=integer(options, "max_num_tiles", high=256, default=36, where=FILE) if tiles else 0, first=encoder.first,
        head_dim=encoder.hidden // encoder.heads, stretch=encoder.stretch, **settings(options, mean=HALF, std=HALF),
    )  # fmt: skip
