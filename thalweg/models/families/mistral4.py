"""Mistral Large 3 and Mistral Small 4: latent attention (MLA) with queries scaled by position, grouped softmax routing, a
shared expert."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError
from thalweg.models.families.deepseek import latent, layers
from thalweg.models.families.mixtures import mixture
from thalweg.models.spec import ModelSpec


def mistral4(config: Config) -> ModelSpec:
    section = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(section, dict):
        raise CheckpointError("config.json: rope_parameters: missing")
    kept = {k: v for k, v in section.items() if k != "partial_rotary_factor"}
    config = {  # without the share that turns: the slice that does has a size
        "q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "n_routed_experts": 128, "num_experts_per_tok": 4,
        "moe_intermediate_size": 2048, **config, "rope_parameters": kept, "rope_scaling": None, "partial_rotary_factor": None,
    }  # fmt: skip
    where = "config.json: rope_parameters"
    beta = real(section, "llama_4_scaling_beta", default=0.0, where=where)
    heads = latent(
        config, interleaved=flag(config, "rope_interleave", True), keys=("llama_4_scaling_beta",),
        grows=(beta, integer(section, "original_max_position_embeddings", where=where)) if beta else None,
    )  # fmt: skip
    moe = mixture(
        config, renormalise=flag(config, "norm_topk_prob", True), groups=integer(config, "n_group", default=1),
        top_groups=integer(config, "topk_group", default=1),
    )  # fmt: skip
    return layers(config, heads, moe, dense=integer(config, "first_k_dense_replace", default=0))
