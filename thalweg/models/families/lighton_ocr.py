"""LightOnOCR: Pixtral encoder with merged patches, Qwen 3 decoder."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families import qwen3
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.common import outer_config
from thalweg.models.families.towers.pixtral import pixtral
from thalweg.models.spec import ModelSpec

NAMES = (
    ("model.vision_encoder.", "model.vision_tower."), ("model.vision_projection.", "model.multi_modal_projector."),
    ("vision_encoder.", "model.vision_tower."), ("vision_projection.", "model.multi_modal_projector."),
)  # fmt: skip


def lighton_ocr(config: Config) -> ModelSpec:
    spec = qwen3.qwen3({**config, "tie_word_embeddings": outer_config(config).get("tie_word_embeddings", True)})
    return seeing(spec, config, lambda c: pixtral(c, True), replace=NAMES)
