"""LLaVA 1.5: one square, the centre of an image after resizing its shorter edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.checkpoint.config import BESIDE, Config, flag, integer, text
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


class Clip(ImageProcessor, frozen=True, kw_only=True):
    shortest: int
    """The edge that images are fitted by; 0: both edges to `side`, whatever their ratio."""
    side: int
    classes: bool
    """A vector of the whole image is computed before those of its patches."""
    whole: bool
    """That vector is given, too."""

    def views(self, width: int, height: int) -> tuple[View, ...]:
        check_shape(width, height)
        if not self.shortest:
            return (View(((self.side, self.side),)),)
        long = int(self.shortest * max(width, height) / min(width, height))
        fitted = (self.shortest, long) if width <= height else (long, self.shortest)
        left, top = (fitted[0] - self.side) // 2, (fitted[1] - self.side) // 2
        return (View((fitted,), (left, top, left + self.side, top + self.side)),)

    def count(self, size: Size) -> int:
        return (self.side // self.patch) ** 2 + self.whole

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        from thalweg.media import patches  # numpy, which the process that reads images does without

        return patches.square(self, views, self.classes, self.whole)


class ClipVector(Clip, frozen=True, kw_only=True):
    """One vector of the whole image."""

    def count(self, size: Size) -> int:
        return 1

    def preprocess(self, views: Sequence[np.ndarray], size: Size) -> PatchInputs:
        result = super().preprocess(views, size)
        result.keep = result.keep[:1]
        return result


def clip_vector(config: Config, options: Config) -> ClipVector:
    """Of CLIP and SigLIP themselves. Their tokenizers have no placeholder, so any token represents an image."""
    classes = outer(config).get("model_type") != "siglip"
    side, patch = (224, 32) if classes else (224, 16)
    kind = "clip_vision_model" if classes else "siglip_vision_model"
    seen = {"model_type": kind, "image_size": side, "patch_size": patch, **vision(config)}
    own = {**outer(config), "vision_config": seen, "image_token_id": 0, "vision_feature_select_strategy": "full"}
    result = clip({**config, BESIDE: own}, options)
    return ClipVector(**{**msgspec.structs.asdict(result), "whole": True, "whole_prompt": True})


def clip(config: Config, options: Config) -> Clip:
    seen, around = vision(config), outer(config)
    if flag(options, "do_pad", False):
        raise UnsupportedModelError(f"{FILE}: do_pad: images padded to squares are not supported by this version")
    strategy = text(around, "vision_feature_select_strategy", "default")
    if strategy not in ("default", "full"):
        raise UnsupportedModelError(f"config.json: vision_feature_select_strategy: {strategy!r:.40} is not supported")
    side = integer(seen, "image_size", default=336)
    classes = text(seen, "model_type", "clip_vision_model") == "clip_vision_model"
    size = options.get("size")
    sized = (
        {"size": {"shortest_edge": size}} if classes and type(size) is int else options
    )  # of SigLIP a number means both edges
    fit: dict[str, Any] = read_size(sized, "size", ("shortest_edge", "height", "width"), {"shortest_edge": side})
    crop = read_size(options, "crop_size", ("height", "width"), {"height": side, "width": side})
    cropped = flag(options, "do_center_crop", "shortest_edge" in fit)
    only((crop if cropped else fit).values(), side)
    return Clip(
        token=token(config), patch=integer(seen, "patch_size", default=14), shortest=fit.get("shortest_edge", 0), side=side,
        classes=classes, whole=classes and strategy == "full", **settings(options, mean=MEAN, std=STD),
    )  # fmt: skip
