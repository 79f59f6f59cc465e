"""DeepSeek-VL and Janus: one square, which a colour fills up where the image is no square."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.checkpoint.config import BESIDE, Config, flag, integer, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
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

_SO400M = {"width": 1152, "layers": 27, "heads": 16, "patch_size": 14, "mlp_ratio": 3.7362}
ENCODERS: Mapping[str, Mapping[str, Any]] = {
    "siglip_large_patch16_384": {"width": 1024, "layers": 24, "heads": 16, "patch_size": 16, "mlp_ratio": 4.0},
    "siglip_so400m_patch14_224": _SO400M,
    "siglip_so400m_patch14_384": _SO400M,
}
"""Name of an encoder of the authors -> its sizes. The file may name others."""
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class DeepseekVL(ImageProcessor, frozen=True, kw_only=True):
    side: int
    least: int
    """Pixels of the shorter edge, at least."""
    floors: bool = False
    """Edges are rounded down, as in the authors' code. transformers rounds them to the nearest number."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        longer = max(width, height)
        if self.floors:
            edges = [int(edge / longer * self.side) for edge in (width, height)]
        else:
            edges = [round(edge * (self.side / longer)) for edge in (width, height)]
        wide, high = (max(edge, self.least) for edge in edges)
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


def janus(config: Config, options: Config) -> Janus:
    seen, around = {"image_size": 384, **vision(config)}, outer(config)
    around = {**around, "image_token_id": token(config, 100_581), "vision_config": seen}
    return Janus(**msgspec.structs.asdict(deepseek_vl({**config, BESIDE: around}, options)))


def deepseek_vl(config: Config, options: Config) -> DeepseekVL:
    seen = vision(config)
    side = integer(seen, "image_size", default=224)
    only(read_size(options, "size", ("height", "width"), {"height": 384}).values(), side)
    if not flag(options, "do_pad", True):
        raise UnsupportedModelError(f"{FILE}: do_pad: false is not supported by this version")
    return DeepseekVL(
        token=token(config, 100_015), patch=integer(seen, "patch_size", default=16), side=side,
        least=integer(options, "min_size", high=side, default=14, where=FILE), **settings(options, mean=MEAN, std=STD),
    )  # fmt: skip


class SiglipTower(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of an encoder as the authors' files have them."""

    hidden: int
    stored: int
    """Layers of the checkpoint."""
    layers: int
    """Layers that are computed."""
    heads: int
    inner: int
    patch: int
    side: int
    """Pixels of a square."""


def read_tower(config: Config) -> SiglipTower:
    """`vision_config` of the authors' format. CheckpointError or UnsupportedModelError."""
    options = vision(config)
    given, kind = options.get("params"), text(options, "cls", "CLIPVisionTower")
    if kind != "CLIPVisionTower" or not isinstance(given, dict):
        raise UnsupportedModelError(
            f"config.json: vision_config: cls {kind!r:.40}: only CLIPVisionTower with params is supported"
        )
    name = text(given, "model_name", "siglip_large_patch16_384")
    if name not in ENCODERS:
        raise UnsupportedModelError(f"config.json: vision_config: model_name {name!r:.60}: supported: {', '.join(ENCODERS)}")
    if given.get("pixel_mean") is not None:
        raise UnsupportedModelError("config.json: vision_config: pixel_mean is not supported by this version")
    args = {"image_size": 384, **ENCODERS[name], **given}
    hidden, layers = integer(args, "width", high=1 << 16), integer(args, "layers", high=1 << 10)
    chosen = integer(args, "select_layer", low=-layers, high=layers, default=-2)
    return SiglipTower(
        hidden=hidden, stored=layers, layers=layers + chosen + 1 if chosen < 0 else chosen,
        heads=integer(args, "heads", high=1 << 10), inner=int(hidden * real(args, "mlp_ratio", 0.01, 100)),
        patch=integer(args, "patch_size", high=1 << 10), side=integer(args, "image_size", high=1 << 14),
    )  # fmt: skip


def read_aligner(config: Config) -> tuple[int, int, int]:
    """(linear layers, size of their input, size of their output). CheckpointError or UnsupportedModelError."""
    options = outer(config).get("aligner_config")
    given = options.get("params") if isinstance(options, dict) else None
    if not isinstance(given, dict):
        raise CheckpointError("config.json: aligner_config: params: must be an object")
    if (kind := text(given, "projector_type", "mlp_gelu")) != "mlp_gelu":
        raise UnsupportedModelError(f"config.json: aligner_config: projector_type {kind!r:.60}: only mlp_gelu is supported")
    depth = integer(given, "depth", high=16, default=1)
    return depth, integer(given, "input_dim", high=1 << 16), integer(given, "n_embed", high=1 << 16)


def multi_modality(config: Config, options: Config) -> DeepseekVL:
    """Janus is known by its tokenizer of images as output."""
    tower = read_tower(config)
    only([integer(options, "image_size", high=1 << 14, default=384, where=FILE)], tower.side)
    kind = Janus if outer(config).get("gen_vision_config") is not None else DeepseekVL
    return kind(
        token=token(config), patch=tower.patch, side=tower.side, floors=True,
        least=integer(options, "min_size", high=tower.side, default=14, where=FILE), **settings(options, mean=MEAN, std=STD),
    )  # fmt: skip
