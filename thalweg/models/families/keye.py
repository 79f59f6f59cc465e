"""Keye-VL: PaddleOCR-VL's encoder, Qwen3 decoder with three-axis RoPE."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.models.families import qwen3
from thalweg.models.families.multimodal import one_axis, seeing, with_axes
from thalweg.models.families.paddleocr_vl import NAMES
from thalweg.models.families.paddleocr_vl import tower as paddle_tower
from thalweg.models.families.towers.common import size, vision_config
from thalweg.models.spec import LayerNorm, ModelSpec, VisionSpec

EPS = 1e-5
"""Of the norm before the projector."""


def keye(config: Config) -> ModelSpec:
    return seeing(_text(config), config, paddle_tower, replace=NAMES)


def keye_1_5(config: Config) -> ModelSpec:
    """Its projector normalises merged vectors."""
    return seeing(_text(config), config, _tower, replace=NAMES)


def _text(config: Config) -> ModelSpec:
    return with_axes(qwen3.qwen3(one_axis({"head_dim": 128, **config})), config, mixed=False)


def _tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    result, unread = paddle_tower(config)
    wide = size(vision_config(config), "hidden_size", 1152) * result.projector.group
    return replace(result, projector=replace(result.projector, before=None, after=(LayerNorm("pre_norm", wide, EPS),))), unread
