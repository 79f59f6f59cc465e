"""Qwen's vision encoders before other decoders: OpenCUA, Tarsier 2, Sarashina2-Vision, POINTS 1.5, HyperCLOVA X Vision 2."""

from __future__ import annotations

from typing import Any

import msgspec

from thalweg.checkpoint.config import BESIDE, Config, integer
from thalweg.media.processors.base import FILE, outer, token
from thalweg.media.processors.qwen_vl import Exaone45, QwenVL, qwen2_5_vl, qwen2_vl


def opencua(config: Config, options: Config) -> Exaone45:
    around = outer(config)
    key = "image_token_id" if around.get("image_token_id") is not None else "media_placeholder_token_id"
    return _with_one_axis(qwen2_5_vl(_with_token(config, integer(around, key, low=0, default=151_664)), options))


def hyperclovax_vision(config: Config, options: Config) -> Exaone45:
    return _with_one_axis(qwen2_5_vl(_with_token(config, token(config, 128_060)), options))


def sarashina2_vision(config: Config, options: Config) -> Exaone45:
    return _with_one_axis(qwen2_vl(_with_token(config, token(config, 14)), options))


def points_1_5(config: Config, options: Config) -> Exaone45:
    return _with_one_axis(qwen2_vl(config, options))


def tarsier2(config: Config, options: Config) -> QwenVL:
    """`size` may name numbers of pixels in place of edges."""
    result, size = qwen2_vl(config, options), options.get("size")
    if not isinstance(size, dict):
        return result
    names = {"least": "min_pixels", "most": "max_pixels"}
    where = f"{FILE}: size"
    limits = {field: integer(size, key, where=where) for field, key in names.items() if key in size and key not in options}
    return msgspec.structs.replace(result, **limits)


def _with_token(config: Config, id: int) -> dict[str, Any]:
    return {**config, BESIDE: {**outer(config), "image_token_id": id}}


def _with_one_axis(result: QwenVL) -> Exaone45:
    return Exaone45(**msgspec.structs.asdict(result))
