"""FlexOlmo: OLMo 2's norms and attention with a mixture of experts on every layer."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.models.families.common import decoder, eps, layer_count
from thalweg.models.families.olmo2 import post_normed
from thalweg.models.families.olmoe import mixture
from thalweg.models.spec import ModelSpec


def flex_olmo(config: Config) -> ModelSpec:
    config = {"rope_theta": 500_000.0, "num_experts": 7, "num_experts_per_tok": 5, **config, "rms_norm_eps": eps(config)}
    return decoder(config, [replace(post_normed(config), ffn=mixture(config))] * layer_count(config))
