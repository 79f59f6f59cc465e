"""DeepSeek-VL: SigLIP encoder, two linear layers, Llama decoder."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import outer_config, size, two_layers, vision_config, with_defaults
from thalweg.models.spec import ModelSpec, VisionSpec

SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "patch_size": 16, "image_size": 224,
}  # fmt: skip
NAMES = (
    ("model.vision_model.", "model.vision_tower."), ("model.aligner.linear", "model.multi_modal_projector.linear_"),
)  # fmt: skip


def deepseek_vl(config: Config) -> ModelSpec:
    tied = outer_config(config).get("tie_word_embeddings", True)
    return seeing(of_kind({**config, "tie_word_embeddings": tied}, "llama"), config, tower, replace=NAMES)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """All layers, and the norm behind them."""
    config = with_defaults(config, **SIGLIP)
    section = vision_config(config)
    projector = two_layers(config, size(section, "hidden_size", 768), hidden_size(config), True)
    return encoder(config, size(section, "num_hidden_layers", 12), projector, normed=True)
