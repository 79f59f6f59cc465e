"""Kimi Linear: delta nets with per-channel decay, NoPE latent attention (MLA) on every fourth layer, sigmoid routers with
expert bias on all layers but the first."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import decoder, eps, layer_count, layer_types, mlp, pre_norms
from thalweg.models.families.groups import check_keys
from thalweg.models.families.mixtures import sigmoid_mixture, sparse
from thalweg.models.spec import KimiDelta, LatentAttention, Layer, ModelSpec, Names

_KEYS = ("full_attn_layers", "kda_layers", "num_heads", "head_dim", "short_conv_kernel_size")
FULL, LINEAR = "full_attention", "linear_attention"
PLAIN = ("gate_proj", "up_proj", "down_proj")
"""Of layers without experts, which transformers writes under the name of those with some."""


def kimi_linear(config: Config) -> ModelSpec:
    section: Any = config.get("linear_attn_config") or {}
    if not isinstance(section, dict):
        raise CheckpointError(f"config.json: linear_attn_config: must be an object, not {section!r:.80}")
    check_keys(section, _KEYS, "linear_attn_config")
    if config.get("mla_use_nope", True) is not True or config.get("moe_router_activation_func", "sigmoid") != "sigmoid":
        raise UnsupportedModelError(
            "config.json: mla_use_nope, moe_router_activation_func: this family only supports NoPE attention, and sigmoid"
        )
    config = {
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 1024, "routed_scaling_factor": 2.446, **config,
        "rms_norm_eps": eps(config, default=1e-5),
    }  # fmt: skip
    types, norms, plain = layer_types(config, _absent(config, section), known=(FULL, LINEAR)), pre_norms(config), mlp(config)
    mixers: dict[str, LatentAttention | KimiDelta] = {FULL: _latent(config), LINEAR: _delta(config, section)}
    moe = sigmoid_mixture(config, experts="num_experts", name="block_sparse_moe", gate="w1", up="w3", down="w2")
    mixtures = sparse(config, integer(config, "first_k_dense_replace", default=1))
    return decoder(
        config, [Layer(mixers[t], moe if mixed else plain, norms) for t, mixed in zip(types, mixtures, strict=True)],
        names=Names(inside=tuple((f".block_sparse_moe.{part}.", f".mlp.{part}.") for part in PLAIN)),
    )  # fmt: skip


def _latent(config: Config) -> LatentAttention:
    def size(key: str, default: int) -> int:
        return integer(config, key, high=1 << 16, default=default)

    return LatentAttention(
        heads=integer(config, "num_attention_heads"), latent=size("kv_lora_rank", 512),
        nope_dim=size("qk_nope_head_dim", 128), value_dim=size("v_head_dim", 128), rope=None,
        still=size("qk_rope_head_dim", 64),
        q_latent=0 if config.get("q_lora_rank") is None else integer(config, "q_lora_rank"),
    )  # fmt: skip


def _delta(config: Config, section: Config) -> KimiDelta:
    def size(own: str, key: str, default: int, low: int = 1) -> int:
        whole = integer(config, key, low=low, high=1 << 16, default=default)
        return integer(section, own, low=low, high=1 << 16, default=whole, where="config.json: linear_attn_config")

    return KimiDelta(
        heads=size("num_heads", "linear_num_heads", 32), dim=size("head_dim", "linear_head_dim", 128),
        kernel=size("short_conv_kernel_size", "linear_conv_kernel_dim", 4, low=2), eps=eps(config),
    )  # fmt: skip


def _absent(config: Config, section: Config) -> list[str]:
    """Types of layers where `layer_types` is absent: by two lists of numbers from 1, or every fourth from the fifth on."""
    count = layer_count(config)
    if "full_attn_layers" not in section or "kda_layers" not in section:
        return [FULL if i and i % 4 == 0 else LINEAR for i in range(count)]
    full, linear = section["full_attn_layers"], section["kda_layers"]
    if not isinstance(full, list) or not isinstance(linear, list) or sorted([*full, *linear]) != list(range(1, count + 1)):
        raise CheckpointError(
            f"config.json: linear_attn_config: full_attn_layers and kda_layers must have the numbers 1 to {count}, each once"
        )
    return [FULL if i + 1 in full else LINEAR for i in range(count)]
