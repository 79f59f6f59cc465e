"""Granite 3 and 4, dense, and mixtures of Granite 3: Llama with multipliers of embeddings, of scores, of what is added to the
residual stream, and a divisor of logits."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.families.common import act, attention, decoder, layer_count, mlp, pre_norms
from thalweg.models.spec import MLP, Layer, ModelSpec, MoE


def granite(config: Config) -> ModelSpec:
    return _model(config, mlp(config, bias=flag(config, "mlp_bias", False)))


def granite_moe(config: Config) -> ModelSpec:
    experts = integer(config, "num_local_experts", high=1 << 16, default=8)
    moe = MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=2),
        inner=integer(config, "intermediate_size", high=1 << 24), act=act(config), renormalise=True, name="block_sparse_moe",
        router="router.layer", fused=("input_linear.weight", "output_linear.weight"),
    )  # fmt: skip
    return _model(config, moe)


def _model(config: Config, inner: MLP | MoE) -> ModelSpec:
    bias = flag(config, "attention_bias", False)
    heads = attention(config, bias=bias, out_bias=bias, scale=multiplier(config, "attention_multiplier"))
    layer = Layer(heads, inner, pre_norms(config), multiplier=multiplier(config, "residual_multiplier"))
    return decoder(config, [layer] * layer_count(config), **scales(config))


def scales(config: Config) -> dict[str, Any]:
    """Those around the layers."""
    return {
        "embed_scale": multiplier(config, "embedding_multiplier"),
        "logit_scale": 1.0 / multiplier(config, "logits_scaling"),
    }


def multiplier(config: Config, key: str) -> float:
    return real(config, key, 1e-6, 1e6, default=1.0)
