"""HyperCLOVA X Vision 2: Qwen2.5-VL's vision encoder, a linear layer, HyperCLOVA X decoder. Positions have one axis."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.models.families import granite
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import is_blind, seeing
from thalweg.models.families.towers.common import outer_config, size, vision_config
from thalweg.models.families.towers.qwen_vl import ROOT, qwen2_5_vl
from thalweg.models.spec import ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer

NAMES = (
    ("model.language_model.model.", "model."), ("model.language_model.lm_head.", "lm_head."), ("model.vision_model.", ROOT),
    ("model.vision_projector.", f"{ROOT}merger.projector."), ("model.projector.", f"{ROOT}merger.projector."),
)  # fmt: skip
"""As published, and as transformers names them in memory."""


def hyperclovax_vision(config: Config) -> ModelSpec:
    """The decoder scales vectors of images, as it scales those of tokens."""
    tied = outer_config(config).get("tie_word_embeddings", True)
    spec = granite.hyperclovax({**config, "tie_word_embeddings": tied})

    def scale_vectors(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
        result, unread = tower(config)
        return replace(result, scale=spec.embed_scale), unread

    return seeing(spec, config, scale_vectors, replace=NAMES, skip=(ROOT,) if is_blind(config) else ())


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    hidden, wide = hidden_size(config), size(vision_config(config), "out_hidden_size", 3584)
    result, unread = qwen2_5_vl({**config, "hidden_size": wide})
    last = ProjectorLayer("projector", wide, hidden, True)
    return replace(result, projector=replace(result.projector, steps=(*result.projector.steps, last))), unread
