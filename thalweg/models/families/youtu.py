"""Youtu-LLM: DeepSeek-V3's latent attention (MLA) with dense MLPs."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag
from thalweg.models.families.common import decoder, layer_count, mlp, pre_norms
from thalweg.models.families.deepseek import latent
from thalweg.models.spec import Layer, ModelSpec


def youtu(config: Config) -> ModelSpec:
    mixer = latent({"q_lora_rank": 1536, **config}, interleaved=flag(config, "rope_interleave", True))
    return decoder(
        config,
        [Layer(mixer, mlp(config), pre_norms(config))] * layer_count(config),
        tied=flag(config, "tie_word_embeddings", True),
    )
