"""XVERSE-MoE: Llama's attention, and a mixture of experts with shared ones in every layer."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag
from thalweg.models.families.common import attention, decoder, layer_count, pre_norms
from thalweg.models.families.llama import llama
from thalweg.models.families.mixtures import mixture
from thalweg.models.spec import Layer, ModelSpec


def xverse(config: Config) -> ModelSpec:
    """Files of the mixture name this architecture too. Dense ones have Llama's layers."""
    return llama(config) if config.get("num_experts") is None else xverse_moe(config)


def xverse_moe(config: Config) -> ModelSpec:
    config = {
        "moe_intermediate_size": config.get("intermediate_size"), "num_experts_per_tok": config.get("moe_top_k"), **config
    }  # fmt: skip
    moe = mixture(
        config,
        experts="num_experts",
        shared="num_shared_experts",
        router="router",
        top=6,
        renormalise=flag(config, "norm_topk_prob", False),
    )
    return decoder(config, [Layer(attention(config), moe, pre_norms(config))] * layer_count(config))
