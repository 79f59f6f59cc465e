"""Aya Vision and Command A Vision: SigLIP encoder, pixel-shuffle projector with a gated layer, Command R decoder.

Command R's `logit_scale` counts, as in its text models. Transformers' class for images leaves it out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, integer, real
from thalweg.models.families import cohere
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import feature_layers, outer_config, size, vision_config, with_defaults
from thalweg.models.spec import LayerNorm, ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 14, "image_size": 384,
    "num_hidden_layers": 26, "num_attention_heads": 14,
}  # fmt: skip

COMMAND = {"intermediate_size": 3072, "patch_size": 16, "image_size": 512, "num_hidden_layers": 27, "num_attention_heads": 12}


def aya_vision(config: Config) -> ModelSpec:
    return seeing(cohere.cohere2({"tie_word_embeddings": True, **config}), config, tower)


def cohere2_vision(config: Config) -> ModelSpec:
    return seeing(cohere.cohere2({"tie_word_embeddings": True, **config}), config, post_norm_tower)


def post_norm_tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """The encoder's output is normalised; the concatenated vectors are not."""
    config = with_defaults(config, **{**SIGLIP, **COMMAND})
    section, around = vision_config(config), outer_config(config)
    wide = size(section, "hidden_size", 1152) * integer(around, "downsample_factor", default=2) ** 2
    projector = _build_projector(config, wide, size(around, "alignment_intermediate_size", 36_864))
    return encoder(config, size(section, "num_hidden_layers", 27), projector, normed=True)


def _build_projector(config: Config, wide: int, inner: int, **more: Any) -> ProjectorSpec:
    out = hidden_size(config)
    steps = (
        ProjectorLayer("linear_1", wide, inner, True, "silu", gated=True),
        ProjectorLayer("linear_2", inner // 2, out, True),
    )
    group = integer(outer_config(config), "downsample_factor", default=2) ** 2
    return ProjectorSpec(root="model.multi_modal_projector.", group=group, steps=steps, **more)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    config = with_defaults(config, **SIGLIP)
    section, around = vision_config(config), outer_config(config)
    read = feature_layers(config, size(section, "num_hidden_layers", 26), -1)
    wide = size(section, "hidden_size", 1152) * len(read) * integer(around, "downsample_factor", default=2) ** 2
    norm = LayerNorm("layernorm", wide, real(around, "adapter_layer_norm_eps", 0, 1, default=1e-6))
    projector = _build_projector(config, wide, size(around, "alignment_intermediate_size", hidden_size(config)), after=(norm,))
    result, unread = encoder(config, max(read), projector)
    return (replace(result, reads=tuple(n - 1 for n in read)) if len(read) > 1 else result), unread
