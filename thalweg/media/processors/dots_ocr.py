"""dots.ocr: Qwen2-VL's sizes, without positions of its own for images."""

from __future__ import annotations

from typing import Any

import msgspec

from thalweg.checkpoint.config import BESIDE, Config, integer
from thalweg.media.processors.base import outer, token, vision
from thalweg.media.processors.qwen_vl import Exaone45, qwen2_vl

MOST = 11_289_600
"""Pixels of an image, unless the files say otherwise."""


def dots_vlm(config: Config, options: Config) -> Exaone45:
    around = {**outer(config), "image_token_id": token(config, 128_815)}
    return dots_ocr({**config, **around, BESIDE: around}, options)


def dots_ocr(config: Config, options: Config) -> Exaone45:
    seen = vision(config)
    mine: dict[str, Any] = {
        "embed_dim": integer(seen, "embed_dim", default=1536), "num_heads": integer(seen, "num_attention_heads", default=12),
        "patch_size": integer(seen, "patch_size", default=14), "temporal_patch_size": 1,
        "spatial_merge_size": integer(seen, "spatial_merge_size", high=16, default=2),
    }  # fmt: skip
    around = {**outer(config), "image_token_id": token(config, 151_665), "vision_config": mine}
    result = qwen2_vl({**config, **around, BESIDE: around}, options)
    most = result.most if {"size", "max_pixels"} & options.keys() else MOST
    return Exaone45(**{**msgspec.structs.asdict(result), "most": most})
