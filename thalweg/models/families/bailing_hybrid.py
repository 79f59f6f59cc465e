"""Ling and Ring 2.5: lightning attention with QK-norm and RoPE. Ling 3: delta nets with per-channel decay. Both have latent
attention (MLA) on the last layer of each group, gated in the third, and sigmoid routers with expert bias and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.bloom import slopes
from thalweg.models.families.common import decoder, eps, layer_count, layer_types, mlp, pre_norms, rope
from thalweg.models.families.deepseek import drafts, latent
from thalweg.models.families.mixtures import sigmoid_mixture, sparse
from thalweg.models.spec import (
    MLP,
    HeadNorm,
    KimiDelta,
    LatentAttention,
    Layer,
    LightningAttention,
    Mixer,
    ModelSpec,
    MoE,
    Names,
)

FULL, LINEAR = "full_attention", "linear_attention"
PUBLISHED = (
    (".attention.", ".self_attn."), (".self_attn.dense.", ".self_attn.o_proj."), (".forget_gate.", "."),
    (".gate.expert_bias", ".gate.e_score_correction_bias"), ("word_embeddings.", "embed_tokens."),
)  # fmt: skip
"""Names of published files, and those that transformers gives them."""


def bailing_moe_v2_5(config: Config) -> ModelSpec:
    config = {
        "rope_theta": 6e5, "routed_scaling_factor": 1.0, "first_k_dense_replace": 1, "layer_group_size": 5, "num_experts": 256,
        "moe_intermediate_size": 512, "num_nextn_predict_layers": 0, **config, "gated_attention_proj_granularity_type": None,
    }  # fmt: skip
    if flag(config, "linear_silu", False):
        raise UnsupportedModelError("config.json: linear_silu: this family has linear attention without activations")
    full = _latent(config)
    return _build_spec(config, [full if t == FULL else _lightning(config, i) for i, t in enumerate(_types(config))])


def bailing_hybrid(config: Config) -> ModelSpec:
    """As transformers names the family."""
    count, group = layer_count(config), integer(config, "layer_group_size", default=6)
    absent = [LINEAR if (i + 1) % group else FULL for i in range(count)]
    return _with_deltas({"gated_attention_proj_granularity_type": "head_wise", **config}, absent)


def bailing_moe_v3(config: Config) -> ModelSpec:
    """As published files name it."""
    return _with_deltas({"no_kda_lora": False, **config}, _types(config))


def _types(config: Config) -> list[str]:
    """Types of layers by their groups. Those after the last whole group have full attention."""
    count, group = layer_count(config), integer(config, "layer_group_size", default=6)
    return [LINEAR if (i + 1) % group and i < count // group * group else FULL for i in range(count)]


def _with_deltas(config: Config, absent: Sequence[str]) -> ModelSpec:
    """Ling 3. absent: types of layers where the configuration names none."""
    config = {
        "num_experts": 512, "moe_intermediate_size": 768, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1,
        "rope_theta": 6e6, "first_k_dense_replace": 2, **config,
    }  # fmt: skip
    if not flag(config, "no_kda_lora", True) or flag(config, "use_mla_nope", False):
        raise UnsupportedModelError("config.json: no_kda_lora, use_mla_nope: this version has whole matrices, and RoPE")
    mixers: dict[str, Mixer] = {FULL: _latent(config), LINEAR: _delta(config)}
    return _build_spec(config, [mixers[t] for t in layer_types(config, absent, known=(FULL, LINEAR))])


def _build_spec(config: Config, mixers: Sequence[Mixer]) -> ModelSpec:
    config = {"n_group": 8, "topk_group": 4, "n_shared_experts": config.get("num_shared_experts", 1), **config}
    for key in ("up_proj_norm", "value_norm", "use_nGPT", "scale_router_input", "use_bias", "use_qkv_bias"):
        if flag(config, key, False):
            raise UnsupportedModelError(f"config.json: {key}: is not supported by this version")
    wide = config.get("moe_shared_expert_intermediate_size")
    if wide is not None and wide != config["moe_intermediate_size"]:
        raise UnsupportedModelError("config.json: moe_shared_expert_intermediate_size: must be moe_intermediate_size")
    norms, plain, mixtures = pre_norms(config), mlp(config), sparse(config, integer(config, "first_k_dense_replace"))
    return decoder(
        config,
        [Layer(mixer, _moe(config, i) if mixtures[i] else plain, norms) for i, mixer in enumerate(mixers)],
        names=Names(skip=drafts(config).skip, inside=PUBLISHED),
    )


def _latent(config: Config) -> LatentAttention:
    section = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kept = {k: v for k, v in section.items() if k != "partial_rotary_factor"} if isinstance(section, dict) else section
    config = {**config, "partial_rotary_factor": None, "rope_parameters": kept, "rope_scaling": None}
    gate = text(config, "gated_attention_proj_granularity_type", "")
    if gate not in ("", "head_wise", "element_wise"):
        raise UnsupportedModelError(f"config.json: gated_attention_proj_granularity_type: unknown {gate!r:.80}")
    return latent(
        config, interleaved=flag(config, "rope_interleave", True), gate="g_proj" if gate else "",
        gate_values=gate == "element_wise",
    )  # fmt: skip


def _lightning(config: Config, layer: int) -> LightningAttention:
    heads, dim, count = integer(config, "num_attention_heads"), integer(config, "head_dim", default=128), layer_count(config)
    depth = 1 - (layer - 1) / max(count - 1, 1) + 1e-5
    norm = None
    if flag(config, "use_qk_norm", True):
        norm = HeadNorm(eps(config), q="query_layernorm", k="key_layernorm")
    return LightningAttention(
        heads=heads, head_dim=dim, slopes=tuple(slope * depth for slope in slopes(heads)), eps=eps(config), act="",
        head_norm=norm, rope=rope({"partial_rotary_factor": 0.5, **config}, dim, partial=True), scale=dim**-0.5,
        groups=integer(config, "group_norm_size", default=4), fused="query_key_value", gate="g_proj", norm_name="g_norm",
        out="o_proj",
    )  # fmt: skip


def _delta(config: Config) -> KimiDelta:
    floor = real(config, "kda_lower_bound", -1e3, -1e-3, default=-5.0) if flag(config, "kda_safe_gate", True) else 0.0
    return KimiDelta(
        heads=integer(config, "linear_num_heads", default=integer(config, "num_attention_heads")), eps=eps(config), full=True,
        dim=integer(config, "linear_head_dim", default=integer(config, "head_dim", default=128)),
        kernel=integer(config, "short_conv_kernel_size", low=2, high=1 << 16, default=4), floor=floor,
    )  # fmt: skip


def _moe(config: Config, layer: int) -> MoE:
    def limit(key: str) -> float:
        section: Any = config.get(key) or [0] * layer_count(config)
        if not isinstance(section, list) or len(section) < layer_count(config):
            raise CheckpointError(f"config.json: {key}: must be a list of {layer_count(config)} numbers, one per layer")
        return real({"limit": section[layer] or 0.0}, "limit", 0, 1e6, where=f"config.json: {key}")

    moe = sigmoid_mixture(config, experts="num_experts", cut=limit("expert_swiglu_limit_list"))
    if not isinstance(moe.shared, MLP):
        return moe
    return replace(moe, shared=replace(moe.shared, cut=limit("share_expert_swiglu_limit_list")))
