"""EXAONE 4.5: Qwen2.5-VL's vision encoder with GQA, EXAONE 4 decoder. Positions have one axis."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.errors import CheckpointError
from thalweg.models.families import exaone4
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.common import size, vision_config, with_defaults
from thalweg.models.families.towers.qwen_vl import qwen2_5_vl
from thalweg.models.spec import Attention, ModelSpec, VisionSpec


def exaone4_5(config: Config) -> ModelSpec:
    return seeing(exaone4.exaone4(config), config, tower)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    config = with_defaults(config, hidden_size=3584, out_hidden_size=3584)
    result, unread = qwen2_5_vl(config)
    each, shared = result.layers[0], size(vision_config(config), "num_key_value_heads", 8)
    assert isinstance(each.mixer, Attention)
    if each.mixer.heads % shared:
        raise CheckpointError(f"config.json: vision_config: num_key_value_heads: {shared} do not divide {each.mixer.heads}")
    each = replace(each, mixer=replace(each.mixer, kv_heads=shared))
    return replace(result, layers=(each,) * len(result.layers)), unread
