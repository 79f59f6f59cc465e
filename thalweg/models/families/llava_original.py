"""LLaVA-NeXT and LLaVA-OneVision in the format of their authors: CLIP or SigLIP, and a Llama, Mistral or Qwen2 decoder."""

from __future__ import annotations

import re
from dataclasses import replace

from thalweg.checkpoint import llava
from thalweg.checkpoint.config import BESIDE, Config, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families import llama, mistral, qwen2
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import feature_layers, outer_config, size, vision_config
from thalweg.models.spec import ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

NAMES = (("model.vision_tower.vision_tower.vision_model.", "model.vision_tower."),)
FIXED = {
    "mm_patch_merge_type": "spatial_unpad", "mm_resampler_type": "", "mm_vision_select_feature": "patch",
}  # fmt: skip
"""Keys with one supported value, which an absent key has too, except the first."""


def llava_llama(config: Config) -> ModelSpec:
    return seeing(llama.llama(config), config, tower, replace=NAMES)


def llava_mistral(config: Config) -> ModelSpec:
    return seeing(mistral.mistral(config), config, tower, replace=NAMES)


def llava_qwen(config: Config) -> ModelSpec:
    return seeing(qwen2.qwen2(config), config, tower, replace=NAMES)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    around, section = outer_config(config), vision_config(config)
    if not section:
        raise UnsupportedModelError(
            f"config.json: {llava.TOWER}: {around.get(llava.TOWER)!r:.80} is unknown; known: {', '.join(llava.ENCODERS)}; "
            "--language-model-only serves the text part"
        )
    for key, only in FIXED.items():
        if (text(around, key, "flat" if "merge" in key else only) or "") != only:
            raise UnsupportedModelError(f"config.json: {key}: {around.get(key)!r:.40}: only {only or None!r} is supported")
    layers = size(section, "num_hidden_layers", 24)
    last = section["model_type"] != "clip_vision_model"
    layer = -1 if last else around.get("mm_vision_select_layer", -2)
    run, *more = feature_layers({**config, BESIDE: {**around, "vision_feature_layer": layer}}, layers, -2)
    if more:
        raise UnsupportedModelError("config.json: mm_vision_select_layer: only one layer is supported")
    result, unread = encoder(config, run, _projector(config, size(section, "hidden_size", 1024)))
    return replace(result, newline="model.image_newline"), unread


def _projector(config: Config, wide: int) -> ProjectorSpec:
    """`mlp2x_gelu` means two linear layers, with an activation between them."""
    kind, out = text(outer_config(config), "mm_projector_type", "linear"), hidden_size(config)
    if kind == "linear":
        return ProjectorSpec(root="model.", steps=(ProjectorLayer("mm_projector", wide, out, True),))
    if (found := re.fullmatch(r"mlp([1-9])x_gelu", kind)) is None:
        raise UnsupportedModelError(
            f"config.json: mm_projector_type: {kind!r:.40} is not supported; linear, mlp2x_gelu and the like are"
        )
    count = int(found[1])
    steps = (
        ProjectorLayer(str(2 * i), wide if i == 0 else out, out, True, "gelu" if i < count - 1 else "") for i in range(count)
    )
    return ProjectorSpec(root="model.mm_projector.", steps=tuple(steps))
