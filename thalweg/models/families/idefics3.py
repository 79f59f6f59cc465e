"""Idefics 3 and SmolVLM: SigLIP encoder, pixel-shuffle projector, Llama decoder."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import outer_config, size, vision_config, with_defaults
from thalweg.models.spec import ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

ROOT = "model.vision_model."
DEFAULTS = {
    "model_type": "idefics3_vision", "intermediate_size": 3072, "num_hidden_layers": 12, "image_size": 224, "patch_size": 32,
}  # fmt: skip


def idefics3(config: Config) -> ModelSpec:
    spec = of_kind({"rms_norm_eps": 1e-5, **config}, "llama")
    return seeing(spec, config, tower, replace=(("model.text_model.", "model."),))


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    config = with_defaults(config, **DEFAULTS)
    section = vision_config(config)
    hidden, group = size(section, "hidden_size", 1152), integer(outer_config(config), "scale_factor", high=16, default=2) ** 2
    step = ProjectorLayer("proj", hidden * group, hidden_size(config))
    projector = ProjectorSpec(root="model.connector.modality_projection.", group=group, steps=(step,))
    result, _ = encoder(config, size(section, "num_hidden_layers", 12), projector, normed=True)
    return replace(result, root=ROOT), ()
