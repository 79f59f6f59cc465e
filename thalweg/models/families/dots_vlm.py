"""dots.vlm1: the vision encoder of dots.ocr, DeepSeek V3 decoder. The module for multi-token prediction is not loaded."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families import deepseek
from thalweg.models.families.common import layer_count
from thalweg.models.families.dots_ocr import tower
from thalweg.models.families.multimodal import seeing
from thalweg.models.spec import ModelSpec


def dots_vlm(config: Config) -> ModelSpec:
    spec, count = replace(deepseek.deepseek_v3(config), mtp=None), layer_count(config)
    modules = integer(config, "num_nextn_predict_layers", low=0, default=0)
    unread = tuple(f"model.layers.{count + i}." for i in range(modules))
    return seeing(spec, config, tower, replace=(("vision_tower.", "model.vision_tower."),), skip=unread)
