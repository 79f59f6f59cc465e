"""Step3-VL: Step 3.7's vision encoder, Qwen3 decoder."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.multimodal import is_blind, of_kind, seeing
from thalweg.models.families.towers.common import vision_config
from thalweg.models.families.towers.step3 import INSIDE, NAMES, step3
from thalweg.models.spec import ModelSpec

FLAGS = {"use_ln_pre": True, "use_ln_post": False, "use_abs_posemb": True, "use_rope2d": True, "use_cls_token": False}
"""Settings of the encoder, of which only these values are supported."""
UNSEEN = ("model.vit_large_projector.", "model.vision_tower.")


def step_vl(config: Config) -> ModelSpec:
    spec = of_kind(config, "qwen3", ("qwen3",))
    if is_blind(config):
        return seeing(spec, config, step3, replace=NAMES, skip=UNSEEN)
    section = vision_config(config)
    for key, value in FLAGS.items():
        if flag(section, key, value) != value:
            raise UnsupportedModelError(f"config.json: vision_config: {key}: only {str(value).lower()} is supported")
    if section.get("ls_init_value", 0.1) is None:
        raise UnsupportedModelError("config.json: vision_config: ls_init_value: a number is required")
    return seeing(spec, config, step3, replace=NAMES, inside=INSIDE)
