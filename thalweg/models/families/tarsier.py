"""Tarsier 1 and 2, for images: LLaVA with a token after each row of vectors, or Qwen2-VL in LLaVA's configuration."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families import multimodal
from thalweg.models.families.towers.qwen_vl import ROOT
from thalweg.models.spec import ModelSpec


def tarsier(config: Config) -> ModelSpec:
    """Files of version 2 name this architecture, too."""
    return tarsier2(config) if str(config.get("model_type")).startswith("qwen2_vl") else multimodal.llava(config)


def tarsier2(config: Config) -> ModelSpec:
    return multimodal.qwen2_vl(config, replace=(("vision_tower.", ROOT),))
