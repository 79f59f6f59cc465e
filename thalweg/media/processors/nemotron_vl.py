"""Nemotron Nano VL, whose images are cut into squares as InternVL's, and Nemotron 3 Omni, whose images keep their ratio between
two numbers of patches. Learned vectors precede the patches of each view."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import (
    FILE,
    ImageProcessor,
    Size,
    View,
    check_shape,
    most_similar,
    outer,
    settings,
    shuffle,
    three,
    token,
    vision,
)
from thalweg.media.processors.qwen_vl import MEAN, STD
from thalweg.media.processors.tiles import TiledImages

if TYPE_CHECKING:
    import numpy as np

    from thalweg.media.patches import PatchInputs


SIZES = {
    "vit_base_patch16_224": (768, 12, 12), "vit_large_patch16_224": (1024, 24, 16), "vit_huge_patch16_224": (1280, 32, 16),
}  # fmt: skip
"""`args.model` of NVIDIA's format -> hidden size, layers and heads."""


def canonical_vision(options: Config) -> Config:
    """`vision_config` with the keys of transformers. NVIDIA's format has them in `args`: a model of timm, and the teachers that
    have a class token each."""
    args = options.get("args")
    if not isinstance(args, dict):
        return options
    name = str(args.get("model"))
    if name not in SIZES:
        raise UnsupportedModelError(
            f"config.json: vision_config: args: model: unknown {name:.60}; supported: {', '.join(SIZES)}"
        )
    hidden, layers, heads = SIZES[name]
    teachers = args.get("teachers") or []
    named = {str(each.get("name")) for each in teachers if isinstance(each, dict)} if isinstance(teachers, list) else set()
    classes = max(len(named), 1) if args.get("cls_token_per_teacher", True) else 1
    every = integer(args, "register_multiple", low=0, high=1 << 10, default=0)
    registers = integer(args, "cpe_num_registers", low=0, high=1 << 10, default=0) or (every - classes % every if every else 0)
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_cls_tokens": classes,
        "num_registers": registers, "max_img_size": integer(args, "cpe_max_size", default=2048), **options,
    }  # fmt: skip


def prefix_rows(options: Config) -> int:
    """Learned vectors before the patches: class tokens and registers."""
    classes = integer(options, "num_cls_tokens", high=1 << 10, default=3)
    return classes + integer(options, "num_registers", low=0, high=1 << 10, default=7)


def table_side(options: Config) -> int:
    """Rows of the table of places, and columns."""
    return integer(options, "max_img_size", high=1 << 16, default=2048) // integer(options, "patch_size", default=16)


class NemotronTiles(TiledImages, frozen=True, kw_only=True):
    first: int
    """Learned vectors before the patches of a view."""
    table: int
    """Rows of the table of places, and columns."""

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import joined_patches, patches

        return joined_patches.concat_views([patches.cropped_places(self, view) for view in views])


class LlamaNemotron(NemotronTiles, frozen=True, kw_only=True):
    """Llama Nemotron Nano VL: tiles are chosen by their pixels, too."""

    def tiling(self, width: int, height: int) -> Size:
        return most_similar(width, height, self.side, self.least, self.most)


class NemotronOmni(ImageProcessor, frozen=True, kw_only=True):
    merge: int
    least: int
    most: int
    """Patches of an image."""
    first: int
    """Learned vectors before them."""
    table: int
    """Rows of the table of places, and columns."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        columns, rows = (round(edge / self.patch + 0.5) for edge in (width, height))
        less = min(math.sqrt(self.most / (rows * columns)), 1.0)
        columns, rows = math.floor(less * columns), math.floor(less * rows)
        if self.most > self.least > rows * columns:
            more = math.sqrt(self.least / (rows * columns))
            columns, rows = math.ceil(more * columns), math.ceil(more * rows)
        rows = self._fit(rows, columns)
        columns = self._fit(columns, rows)
        return (View(((columns * self.patch, rows * self.patch),)),)

    def _fit(self, edge: int, other: int) -> int:
        """A multiple of `merge`, the next one if the image has not too many patches then."""
        over = edge % self.merge
        if not over:
            return edge
        larger = edge + self.merge - over
        return larger if larger * other <= self.most else max(self.merge, edge - over)

    def count(self, size: Size) -> int:
        width, height = self.first_view_size(size)
        return width * height // (self.patch * self.merge) ** 2

    def text(self, size: Size, token: str) -> str:
        return f"<img>{token * self.count(size)}</img>"

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches

        return patches.cropped_places(self, *views)


def nemotron_nano_vl(config: Config, options: Config) -> NemotronTiles:
    if not flag(options, "use_thumbnail", True):
        raise UnsupportedModelError(f"{FILE}: use_thumbnail: false is not supported by this version")
    side = integer(
        options, "image_size", high=1 << 14, default=integer(outer(config), "force_image_size", default=512), where=FILE
    )
    most = integer(options, "max_num_tiles", high=64, default=12, where=FILE)
    return NemotronTiles(side=side, least=1, most=most, classes=False, **_read_shared(config, options))


def llama_nemotron(config: Config, options: Config) -> LlamaNemotron:
    return LlamaNemotron(**msgspec.structs.asdict(nemotron_nano_vl(config, options)))


def nemotron_omni(config: Config, options: Config) -> NemotronOmni:
    """The number of patches is limited by `max_model_len` of the file too. Images are resized in 8 bits."""
    shared = _read_shared(config, options)
    least = integer(options, "min_num_patches", high=1 << 20, default=1024, where=FILE)
    most = integer(options, "max_num_patches", low=0, high=1 << 20, default=13_312, where=FILE)
    context = (integer(options, "max_model_len", low=5, default=16_384, where=FILE) - 4) * shared["merge"] ** 2
    return NemotronOmni(least=least, most=max(min(context, most or context), least), **shared)


def _read_shared(config: Config, options: Config) -> dict[str, Any]:
    seen = canonical_vision(vision(config))
    return {
        "token": token(config), "patch": integer(seen, "patch_size", high=1 << 10, default=16), "marker": "<image>",
        "merge": shuffle(outer(config), "downsample_ratio"), "first": prefix_rows(seen), "table": table_side(seen),
        **settings(options, mean=three(options, "norm_mean", MEAN), std=three(options, "norm_std", STD)),
    }  # fmt: skip
