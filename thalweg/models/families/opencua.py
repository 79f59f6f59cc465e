"""OpenCUA: Qwen2.5-VL's vision encoder, Qwen2 decoder. Positions have one axis."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.qwen_vl import ROOT, qwen2_5_vl
from thalweg.models.spec import ModelSpec


def opencua(config: Config) -> ModelSpec:
    return seeing(of_kind(config, "qwen2", ("qwen2",)), config, qwen2_5_vl, replace=(("vision_tower.", ROOT),))
