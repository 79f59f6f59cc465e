"""Tarsier 2: Qwen2-VL, whose configuration is the text part of a LLaVA configuration."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families.multimodal import qwen2_vl
from thalweg.models.families.towers.qwen_vl import ROOT
from thalweg.models.spec import ModelSpec


def tarsier2(config: Config) -> ModelSpec:
    return qwen2_vl(config, replace=(("vision_tower.", ROOT),))
