"""GLM-4.1V, 4.5V, 4.6V and GLM-OCR: a vision encoder, GLM-4 decoder (dense or MoE) with three-axis RoPE."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer, text
from thalweg.models.families import glm4 as dense
from thalweg.models.families import glm4_moe as mixed
from thalweg.models.families.common import head_size, hidden_size
from thalweg.models.families.multimodal import one_axis, seeing, with_axes
from thalweg.models.families.towers.glm4v import glm4v as tower
from thalweg.models.families.towers.glm4v import glm_ocr as ocr_tower
from thalweg.models.spec import ModelSpec

SECTIONS = [8, 12, 12]


def glm4v(config: Config) -> ModelSpec:
    config = {"rms_norm_eps": 1e-5, "num_key_value_heads": 2, **config}
    head_dim = hidden_size(config) // integer(config, "num_attention_heads", default=32)
    spec = dense.glm4(one_axis({**config, "head_dim": head_dim}))
    return seeing(with_axes(spec, config, mixed=False, absent=SECTIONS), config, tower)


def glm4v_moe(config: Config) -> ModelSpec:
    spec = replace(mixed.glm4_moe(one_axis({"attention_bias": True, **config})), mtp=None)  # its positions have three axes
    return seeing(with_axes(spec, config, mixed=False, absent=SECTIONS), config, tower, skip=spec.names.skip)


def glm46v(config: Config) -> ModelSpec:
    """GLM-4.6V by transformers' name. The text part says whether it has experts."""
    return (glm4v_moe if text(config, "model_type", "glm4v_text").startswith("glm4v_moe") else glm4v)(config)


def glm_ocr(config: Config) -> ModelSpec:
    """Positions rotate whole heads, of the file's size where it has one. The drafter's tensors follow the last layer."""
    config = {"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "attention_bias": False, "partial_rotary_factor": 1.0, **config}
    spec = dense.glm4(one_axis({**config, "head_dim": head_size(config)}))
    drafts = f"model.language_model.layers.{len(spec.layers)}."
    return seeing(with_axes(spec, config, mixed=False, absent=SECTIONS), config, ocr_tower, skip=(drafts,))
