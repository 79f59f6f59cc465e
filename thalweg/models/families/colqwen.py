"""ColQwen 2, 3 and 3.5: a vector per token of a text, or of a page's image, of Qwen-VL and a projection to a smaller size."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families import multimodal
from thalweg.models.families.common import hidden_size, pooling
from thalweg.models.families.tails import attach_tail
from thalweg.models.families.towers.common import outer_config
from thalweg.models.spec import ModelSpec
from thalweg.models.tail import Dense

SIZES = ("embedding_dim", "embed_dim", "dims", "dim", "projection_dim", "colbert_dim")
PREFIXES = (
    ("vlm.language_model.lm_head.", "lm_head."),
    ("vlm.model.language_model.", "model."), ("vlm.language_model.model.", "model."), ("vlm.language_model.", "model."),
    ("vlm.model.visual.", "model.visual."), ("vlm.visual.", "model.visual."), ("vlm.lm_head.", "lm_head."),
    ("vlm.vision_tower.vision_model.", "model.vision_tower."), ("vlm.vision_tower.", "model.vision_tower."),
    ("vlm.model.vision_tower.vision_model.", "model.vision_tower."),
    ("vlm.multi_modal_projector.", "model.multi_modal_projector."),
    ("vlm.model.", "model."), ("custom_text_proj.", "embedding_proj_layer."), ("language_model.", "model."),
)  # fmt: skip
"""As transformers and the authors of these models write them."""


def colqwen2(config: Config) -> ModelSpec:
    return project_tokens(multimodal.qwen2_vl(config), config)


def colqwen3(config: Config) -> ModelSpec:
    return project_tokens(multimodal.qwen3_vl(config), config)


def colqwen3_5(config: Config) -> ModelSpec:
    return project_tokens(multimodal.qwen3_5(config), config)


def project_tokens(spec: ModelSpec, config: Config) -> ModelSpec:
    """The backbone with a projection of every token's state, and the names that checkpoints of such models have."""
    sources = (config, outer_config(config))
    size = next((integer(s, key, high=1 << 20) for key in SIZES for s in sources if s.get(key) is not None), 128)
    dense = Dense("", hidden_size(config), size, act="none", name="model.embedding_proj_layer")
    names = replace(spec.names, replace=(*PREFIXES, *spec.names.replace))
    return attach_tail(replace(spec, names=names), replace(pooling(config, default="last"), each=True, dense=(dense,)))
