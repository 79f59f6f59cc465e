"""LFM2-VL: SigLIP 2 encoder (any aspect ratio and size), LFM2 decoder (dense or MoE)."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families import lfm2
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import act, outer_config, size, vision_config, with_defaults
from thalweg.models.spec import LayerNorm, ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

SIGLIP_2 = {
    "model_type": "siglip2_vision_model", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "patch_size": 16,
}  # fmt: skip
TEXT = {"lfm2": lfm2.lfm2, "lfm2_moe": lfm2.lfm2_moe}


def lfm2_vl(config: Config) -> ModelSpec:
    kind = text(config, "model_type", "lfm2")
    if kind not in TEXT:
        raise UnsupportedModelError(f"config.json: text_config: unknown model_type {kind!r:.80}; supported: {', '.join(TEXT)}")
    tied = flag(outer_config(config), "tie_embedding", flag(outer_config(config), "tie_word_embeddings", True))
    return seeing(TEXT[kind]({**config, "tie_embedding": tied}), config, tower)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    config = with_defaults(config, **SIGLIP_2)
    section, around = vision_config(config), outer_config(config)
    wide = size(section, "hidden_size", 768) * integer(around, "downsample_factor", default=2) ** 2
    inner, bias = size(around, "projector_hidden_size", 2560), flag(around, "projector_bias", True)
    projector = ProjectorSpec(
        root="model.multi_modal_projector.", group=integer(around, "downsample_factor", default=2) ** 2,
        after=(LayerNorm("layer_norm", wide, 1e-5),) if flag(around, "projector_use_layernorm", True) else (),
        steps=(
            ProjectorLayer("linear_1", wide, inner, bias, act(around, "projector_hidden_act", "gelu")),
            ProjectorLayer("linear_2", inner, hidden_size(config), bias),
        ),
    )  # fmt: skip
    result, unread = encoder(config, size(section, "num_hidden_layers", 12), projector, normed=True)
    return replace(result, kernel=(result.kernel[0] * result.kernel[1] ** 2,), rows=size(section, "num_patches", 256)), unread
