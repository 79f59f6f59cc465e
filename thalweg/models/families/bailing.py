"""Ling and Ring, 1 and 2, and Param2: MoE with a shared expert. The second and Param2 have QK-norm, partial rotary positions,
and a sigmoid router with expert bias and groups."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import attention, decoder, eps, head_size, layer_count, mlp, pre_norms, rope
from thalweg.models.families.deepseek import drafts
from thalweg.models.families.mixtures import mixture, sigmoid_mixture
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, MoE


def bailing_moe(config: Config) -> ModelSpec:
    """The first: a softmax chooses, positions turn whole heads, which have no norms."""
    if flag(config, "norm_head", False) or config.get("multi_gate"):
        raise UnsupportedModelError("config.json: norm_head, multi_gate: this version serves Ling and Ring without")
    config = {"norm_topk_prob": True, "first_k_dense_replace": 0, **config}
    moe = mixture(config, experts="num_experts", shared="num_shared_experts", renormalise=flag(config, "norm_topk_prob", True))
    return _model(config, moe, partial=False, norm=None)


def bailing_moe_v2(config: Config) -> ModelSpec:
    if text(config, "score_function", "sigmoid") != "sigmoid" or not flag(config, "moe_router_enable_expert_bias", True):
        raise UnsupportedModelError("config.json: score_function: this family has sigmoids and a correction")
    shared = config.get("moe_shared_expert_intermediate_size")
    if shared is not None and shared != config.get("moe_intermediate_size"):
        raise UnsupportedModelError("config.json: moe_shared_expert_intermediate_size: must be moe_intermediate_size")
    moe = sigmoid_mixture(config, experts="num_experts", shared="num_shared_experts", correction="gate.expert_bias")
    normed = flag(config, "use_qk_norm", True)
    norm = HeadNorm(eps(config), q="query_layernorm", k="key_layernorm") if normed else None
    return _model(config, moe, partial=True, norm=norm)


def sarvam_moe(config: Config) -> ModelSpec:
    """Sarvam 30B."""
    spec = bailing_moe_v2(config)
    inside = ((".gate.e_score_correction_bias", ".gate.expert_bias"),)
    return replace(spec, names=replace(spec.names, inside=inside))


def param2_moe(config: Config) -> ModelSpec:
    """Param2: Ling 2 where the size of the shared experts may be given. Other engines subtract the mean of biases, which
    changes no choice."""
    section = config.get("moe_shared_expert_intermediate_size")
    spec = bailing_moe_v2({"use_qk_norm": False, **config, "moe_shared_expert_intermediate_size": None})
    if section is None:
        return spec
    shared = mlp(config, inner=integer(config, "moe_shared_expert_intermediate_size"), name="shared_experts")
    layers = []
    for each in spec.layers:
        if isinstance(each.ffn, MoE) and each.ffn.shared is not None:
            each = replace(each, ffn=replace(each.ffn, shared=shared))
        layers.append(each)
    return replace(spec, layers=tuple(layers))


def _model(config: Config, moe: MoE, *, partial: bool, norm: HeadNorm | None) -> ModelSpec:
    head_dim = head_size(config)
    heads = attention(
        config, head_dim=head_dim, rope=rope(config, head_dim, partial=partial), bias=flag(config, "use_qkv_bias", False),
        out_bias=flag(config, "use_bias", False), name="attention", fused="query_key_value", parts=("q", "k", "v"), out="dense",
        norm=norm,
    )  # fmt: skip
    dense, norms = integer(config, "first_k_dense_replace", default=0), pre_norms(config)
    return decoder(
        config, [Layer(heads, mlp(config) if i < dense else moe, norms) for i in range(layer_count(config))],
        embed="word_embeddings", names=drafts(config),
    )  # fmt: skip
