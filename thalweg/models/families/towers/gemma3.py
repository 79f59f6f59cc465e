"""Gemma 3's encoder: SigLIP with average pooling in squares."""

from __future__ import annotations

import math

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import CheckpointError
from thalweg.models.families.common import hidden_size
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import outer_config, size, vision_config
from thalweg.models.spec import Norm, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec


def vectors(config: Config) -> int:
    """Of one image."""
    return integer(outer_config(config), "mm_tokens_per_image", default=256)


def gemma3(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    section = vision_config(config)
    hidden, side = size(section, "hidden_size", 1152), size(section, "image_size", 896) // size(section, "patch_size", 14)
    each = math.isqrt(vectors(config))
    if each**2 != vectors(config) or side % each:
        raise CheckpointError(f"config.json: mm_tokens_per_image: {vectors(config)} are no square that divides {side} x {side}")
    projector = ProjectorSpec(
        root="model.multi_modal_projector.", group=(side // each) ** 2, join="mean",
        after=(Norm("mm_soft_emb_norm", hidden, real(section, "layer_norm_eps", default=1e-6), offset=1.0),),
        steps=(ProjectorLayer("mm_input_projection", hidden, hidden_size(config), turned=True),),
    )  # fmt: skip
    return encoder(config, size(section, "num_hidden_layers", 27), projector, normed=True)
