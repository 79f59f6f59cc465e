"""Ministral 3: Mistral with YaRN, and queries scaled by position."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import CheckpointError
from thalweg.models.families.common import attention, decoder, eps, layer_count, mlp, pre_norms, rope
from thalweg.models.spec import Layer, ModelSpec


def ministral3(config: Config) -> ModelSpec:
    section = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(section, dict):
        raise CheckpointError("config.json: rope_parameters: missing")
    config = {**config, "rms_norm_eps": eps(config, default=1e-5)}
    where = "config.json: rope_parameters"
    beta = real(section, "llama_4_scaling_beta", default=0.0, where=where)
    head_dim, read = integer(config, "head_dim", default=128), {**config, "rope_parameters": section}
    heads = attention(
        config, head_dim=head_dim, rope=rope({**read, "rope_scaling": None}, head_dim, keys=("llama_4_scaling_beta",)),
        window=integer(config, "sliding_window", default=0),
        grows=(beta, integer(section, "original_max_position_embeddings", where=where)) if beta else None,
    )  # fmt: skip
    return decoder(config, [Layer(heads, mlp(config), pre_norms(config))] * layer_count(config))
