"""ColModernVBERT: a vector per token of a text, or of a page's image, of SigLIP, ModernBERT and a projection to a smaller size
(Teiletche et al. 2025, https://arxiv.org/abs/2510.01149)."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.colqwen import project_tokens
from thalweg.models.families.common import hidden_size
from thalweg.models.families.modernbert import modernbert
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import outer_config, size, vision_config, with_defaults
from thalweg.models.spec import ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "image_size": 224, "patch_size": 16,
}  # fmt: skip
NAMES = (
    ("vlm.text_model.", "model."), ("vlm.vision_model.vision_model.", "model.vision_tower."),
    ("vlm.vision_model.", "model.vision_tower."), ("vlm.connector.", "model.connector."),
)  # fmt: skip


def colmodernvbert(config: Config) -> ModelSpec:
    text = modernbert(config)
    spec = seeing(text, config, tower, replace=NAMES, skip=text.names.skip)
    return project_tokens(spec, config)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """All layers, and the norm behind them."""
    config = with_defaults(config, **SIGLIP)
    section = vision_config(config)
    group = integer(outer_config(config), "pixel_shuffle_factor", high=16, default=4) ** 2
    step = ProjectorLayer("modality_projection", size(section, "hidden_size", 768) * group, hidden_size(config))
    projector = ProjectorSpec(root="model.connector.", group=group, steps=(step,))
    return encoder(config, size(section, "num_hidden_layers", 12), projector, normed=True)
