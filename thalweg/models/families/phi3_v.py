"""Phi-3-vision and Phi-3.5-vision: CLIP encoder with tiles, merged patches with learned vectors between rows, Phi-3 decoder."""

from __future__ import annotations

from thalweg.checkpoint.config import BESIDE, Config, flag, section, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families import phi3
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import outer_config, size, vision_config, with_defaults
from thalweg.models.spec import ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "patch_size": 14, "image_size": 336,
}  # fmt: skip
"""CLIP ViT-L/14 at 336 pixels, which the files name."""
PARTS = "model.vision_embed_tokens."
ROOT = "model.multi_modal_projector."
NAMES = ((f"{PARTS}img_processor.vision_model.", "model.vision_tower."), (PARTS, ROOT))
GROUP = 4
"""Patches of one vector."""


def phi3_v(config: Config) -> ModelSpec:
    settings = section(config, "embd_layer")
    order, merged = text(settings, "hd_transform_order", "sub_glb"), flag(settings, "use_hd_transform", True)
    if order != "sub_glb" or not merged or not flag(settings, "with_learnable_separator", True):
        raise UnsupportedModelError(
            "config.json: embd_layer: only use_hd_transform and with_learnable_separator in the order sub_glb are supported"
        )
    return seeing(phi3.phi3(config), config, tower, replace=NAMES, skip=(f"{PARTS}wte.",))


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """The last layer but one, without the norm behind the last."""
    config = with_defaults(config, **CLIP)
    config = {
        **config,
        BESIDE: {**outer_config(config), "vision_config": {**vision_config(config), "model_type": "clip_vision_model"}},
    }
    wide, out = GROUP * size(vision_config(config), "hidden_size", 1024), hidden_size(config)
    projector = ProjectorSpec(
        root=ROOT, group=GROUP, learned=(("sub_GN", (1, 1, 1, wide)), ("glb_GN", (1, 1, wide))),
        steps=(ProjectorLayer("img_projection.0", wide, out, True, "gelu"), ProjectorLayer("img_projection.2", out, out, True)),
    )  # fmt: skip
    return encoder(config, size(vision_config(config), "num_hidden_layers", 24) - 1, projector)
