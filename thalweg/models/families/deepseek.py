"""DeepSeek-MoE, V2, V3, R1 and Kimi K2: latent attention (MLA) with decoupled RoPE, grouped expert routing, shared experts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real, section, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import attention, decoder, eps, layer_count, mlp, pre_norms, rope
from thalweg.models.families.mixtures import mixture, sigmoid_mixture
from thalweg.models.families.nextn import attach_module
from thalweg.models.spec import LatentAttention, Layer, Mixer, ModelSpec, MoE, Names, Rope


def deepseek(config: Config) -> ModelSpec:
    """DeepSeek-MoE, the first: Llama's attention."""
    if text(config, "scoring_func", "softmax") != "softmax":
        raise UnsupportedModelError("config.json: scoring_func: DeepSeek-MoE only supports softmax")
    config = {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "num_nextn_predict_layers": 0, **config}
    bias = flag(config, "attention_bias", False)
    moe = mixture(config, renormalise=flag(config, "norm_topk_prob", False))
    return layers(
        config, attention(config, bias=bias, out_bias=bias), moe,
        dense=integer(config, "first_k_dense_replace", default=0),
    )  # fmt: skip


def deepseek_v2(config: Config) -> ModelSpec:
    """`topk_method` "greedy" chooses among all experts, "group_limited_greedy" within groups, for which their best expert
    stands."""
    config = {"q_lora_rank": 1536, "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407, **config}
    method = text(config, "topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise UnsupportedModelError(f"config.json: topk_method: {method!r:.80} is not supported by this version")
    grouped: dict[str, Any] = {}
    if method != "greedy":
        grouped = {"groups": integer(config, "n_group"), "top_groups": integer(config, "topk_group"), "group_best": 1}
    moe = mixture(config, renormalise=flag(config, "norm_topk_prob", False), **grouped)
    return layers(config, latent(config, interleaved=True), moe, dense=integer(config, "first_k_dense_replace", default=0))


def deepseek_v3(config: Config) -> ModelSpec:
    config = {
        "q_lora_rank": 1536, "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "num_nextn_predict_layers": 1, **config,
    }  # fmt: skip
    if text(config, "topk_method", "noaux_tc") != "noaux_tc" or text(config, "scoring_func", "sigmoid") != "sigmoid":
        raise UnsupportedModelError("config.json: topk_method, scoring_func: this family only supports noaux_tc and sigmoid")
    mixer, moe = latent(config, interleaved=flag(config, "rope_interleave", True)), sigmoid_mixture(config)
    spec = layers(config, mixer, moe, dense=integer(config, "first_k_dense_replace", default=3))
    if not integer(config, "num_nextn_predict_layers"):
        return spec
    return attach_module(spec, Layer(mixer, moe, pre_norms(config)), eps(config))


def sarvam_mla(config: Config) -> ModelSpec:
    """Sarvam 105B: V3 with other keys."""
    settings = {**(section(config, "rope_scaling") or section(config, "rope_parameters"))}
    kind = settings.pop("type", settings.get("rope_type"))
    if kind == "deepseek_yarn":
        config = {**config, "rope_parameters": None, "rope_scaling": {**settings, "rope_type": "yarn"}}
    if text(config, "score_function", "sigmoid") != "sigmoid":
        raise UnsupportedModelError("config.json: score_function: this family only supports sigmoid")
    moe = sigmoid_mixture(config, experts="num_experts", shared="num_shared_experts")
    return layers(config, latent(config, interleaved=True), moe, dense=integer(config, "first_k_dense_replace", default=1))


def latent(config: Config, *, interleaved: bool, keys: Sequence[str] = (), **more: Any) -> LatentAttention:
    """keys: as `rope` reads them. more: fields of `spec.LatentAttention` that the family decides."""

    def size(key: str, default: int) -> int:
        return integer(config, key, high=1 << 16, default=default)

    nope, turned = size("qk_nope_head_dim", 128), size("qk_rope_head_dim", 64)
    turning = rope(config, turned, interleaved=interleaved, keys=keys)
    settings: dict[str, Any] = {
        "heads": integer(config, "num_attention_heads"), "latent": size("kv_lora_rank", 512), "nope_dim": nope,
        "value_dim": size("v_head_dim", 128), "rope": turning, "bias": flag(config, "attention_bias", False),
        "q_latent": 0 if config.get("q_lora_rank") is None else integer(config, "q_lora_rank"),
        "scale": (nope + turned) ** -0.5 * _sharper(turning),
    }  # fmt: skip
    return LatentAttention(**(settings | more))


def _sharper(rope: Rope) -> float:
    """Factor of scores under scaled positions, where they have one: the square of YaRN's magnitude for all values of a head."""
    parameters = rope.parameters
    every = real(parameters, "mscale_all_dim", 0, 1e6, default=0.0, where="rope_parameters")
    if parameters["rope_type"] == "default" or not every:
        return 1.0
    factor = real(parameters, "factor", 1e-6, 1e6, where="rope_parameters")
    return (0.1 * every * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0


def layers(config: Config, mixer: Mixer, moe: MoE, *, dense: int) -> ModelSpec:
    """The first `dense` layers have a plain MLP, and of the others all but each `moe_layer_freq`-th."""
    norms, count, every = pre_norms(config), layer_count(config), integer(config, "moe_layer_freq", default=1)
    parts = [moe if i >= dense and i % every == 0 else mlp(config) for i in range(count)]
    return decoder(config, [Layer(mixer, part, norms) for part in parts], names=drafts(config))


def drafts(config: Config) -> Names:
    """Layers that guess tokens ahead come last in the files, and are left out."""
    count, more = layer_count(config), integer(config, "num_nextn_predict_layers", default=0)
    return Names(skip=tuple(f"model.layers.{count + i}." for i in range(more)))
