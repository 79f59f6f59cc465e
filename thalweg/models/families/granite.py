"""Granite 3 and 4 (dense) and Granite 3 MoE: Llama with multipliers on embeddings, attention scores and residuals, and a
logits divisor. HyperCLOVA X is built alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.families.common import act, attention, decoder, eps, head_size, hidden_size, layer_count, mlp, pre_norms
from thalweg.models.spec import MLP, Layer, ModelSpec, MoE, Names, Norm


def granite(config: Config) -> ModelSpec:
    return _model(config, mlp(config, bias=flag(config, "mlp_bias", False)))


def granite_moe(config: Config) -> ModelSpec:
    experts = integer(config, "num_local_experts", default=8)
    moe = MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=2),
        inner=integer(config, "intermediate_size"), act=act(config), renormalise=True, name="block_sparse_moe",
        router="router.layer", fused=("input_linear.weight", "output_linear.weight"),
    )  # fmt: skip
    return _model(config, moe)


def granite_moe_shared(config: Config) -> ModelSpec:
    """With a shared expert, a separate part in files."""
    inner = integer(config, "shared_intermediate_size", low=0, high=1 << 24, default=0)
    result = granite_moe(config)
    if not inner:
        return result
    shared = mlp(config, inner=inner, name="shared_mlp", fused="input_linear", down="output_linear")
    layers = [replace(each, ffn=replace(cast(MoE, each.ffn), shared=shared)) for each in result.layers]
    return replace(result, layers=tuple(layers), names=Names(inside=((".shared_mlp.", ".block_sparse_moe.shared_mlp."),)))


def hyperclovax(config: Config) -> ModelSpec:
    """HyperCLOVA X: also a norm after each part, and logits are multiplied by Granite's divisor."""
    section = {**config, "attention_multiplier": config.get("attention_multiplier") or head_size(config) ** -0.5}
    hidden, e = hidden_size(config), eps(config)
    result = replace(granite(section), logit_scale=multiplier(config, "logits_scaling"))
    if not flag(config, "use_post_norm", True):
        return result
    after = {"mixer_out": Norm("post_norm1", hidden, e), "ffn_out": Norm("post_norm2", hidden, e)}
    return replace(result, layers=tuple(replace(each, norms=replace(each.norms, **after)) for each in result.layers))


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
