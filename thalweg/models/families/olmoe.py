"""OLMoE: Llama with QK-norm over all heads at once, and a mixture of experts on every layer."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import act, attention, clip, decoder, eps, layer_count, pre_norms
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, MoE


def olmoe(config: Config) -> ModelSpec:
    config = {**config, "rms_norm_eps": eps(config, default=1e-5)}
    bias = flag(config, "attention_bias", False)
    heads = attention(config, clip=clip(config), bias=bias, out_bias=bias, norm=HeadNorm(eps(config), whole=True))
    return decoder(config, [Layer(heads, mixture(config), pre_norms(config))] * layer_count(config))


def mixture(config: Config) -> MoE:
    experts = integer(config, "num_experts", default=64)
    return MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(8, experts)),
        inner=integer(config, "intermediate_size"), act=act(config),
        renormalise=flag(config, "norm_topk_prob", False),
    )  # fmt: skip
