"""ViP-LLaVA: CLIP encoder, a norm over the outputs of several layers and two linear layers, Llama decoder."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import BESIDE, Config, real
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.clip import features
from thalweg.models.families.towers.common import outer_config, with_defaults
from thalweg.models.spec import LayerNorm, ModelSpec, VisionSpec

LAYERS = [-2, -5, -8, -11, 6]
"""Layers that are read, unless the file names others."""


def vipllava(config: Config) -> ModelSpec:
    return seeing(of_kind(config, "llama"), config, tower)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    config = with_defaults(config, patch_size=14)
    around = outer_config(config)
    read = around.get("vision_feature_layer", around.get("vision_feature_layers", LAYERS))
    result, unread = features({**config, BESIDE: {**around, "vision_feature_layer": read}}, 24, -2)
    e = real(around, "projector_layernorm_eps", 0, 1, default=1e-5)
    norm = LayerNorm("projector_layernorm", result.projector.steps[0].inputs, e)
    return replace(result, projector=replace(result.projector, after=(norm,))), unread
