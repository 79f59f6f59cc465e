"""GigaChat 3.5: DeepSeek-V3 with gated delta nets on most layers, gated latent attention (MLA) with scaled latents, norms with
gates before and after each part, and clamped experts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import decoder, eps, hidden_size, layer_count, layer_types, mlp
from thalweg.models.families.deepseek import drafts, latent
from thalweg.models.families.mixtures import sigmoid_mixture
from thalweg.models.families.qwen3_next import build_delta
from thalweg.models.spec import FFN, MLP, GatedNorm, LatentAttention, Layer, Mixer, ModelSpec, Norms

FULL, LINEAR = "full_attention", "linear_attention"
OFFSETS = {"ZeroCenteredGatedNorm": 1.0, "GatedNorm": 0.0}
"""Added to the weight of each `norm_type`."""


def gigachat35(config: Config) -> ModelSpec:
    if text(config, "topk_method", "noaux_tc") != "noaux_tc" or text(config, "scoring_func", "sigmoid") != "sigmoid":
        raise UnsupportedModelError("config.json: topk_method, scoring_func: this family only supports noaux_tc and sigmoid")
    if flag(config, "use_shared_expert_sigmoid", False):
        raise UnsupportedModelError("config.json: use_shared_expert_sigmoid: this version's shared experts have no gate")
    config = {
        "q_lora_rank": 1536, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "rope_theta": 1e5,
        "routed_scaling_factor": 2.5, "moe_intermediate_size": 896, "linear_num_key_heads": 8, "linear_num_value_heads": 16,
        **config,
    }  # fmt: skip
    count, norm, moe = layer_count(config), _norm(config), sigmoid_mixture(config)
    mixers: dict[str, Mixer] = {FULL: _latent(config), LINEAR: _delta(config)}
    scale = real(config, "linear_sigmoid_gate_scale", 1e-6, 1e6, default=2.0)
    limit = real(config, "swiglu_limit", 0, 1e6, default=0.0) if config.get("swiglu_limit") is not None else 0.0
    parts: dict[bool, FFN] = {True: replace(moe, clamp=limit), False: replace(mlp(config), clamp=limit)}
    if isinstance(moe.shared, MLP):
        parts[True] = replace(moe, clamp=limit, shared=replace(moe.shared, clamp=limit))
    dense, every = integer(config, "first_k_dense_replace", low=0, default=1), integer(config, "moe_layer_freq", default=1)
    norms = _norms(config, partial(norm, size=hidden_size(config)))
    layers = [
        Layer(
            mixers[kind], parts[i >= dense and i % every == 0], norms,
            mixer_scales=((1.0, scale),) if kind == LINEAR and scale != 1.0 else (),
        )
        for i, kind in enumerate(_kinds(config, count))
    ]  # fmt: skip
    names = replace(drafts(config), inside=((".self_attn.attn_gate.", ".self_attn.gate_proj."),))
    return decoder(config, layers, norm=norm("norm", hidden_size(config)), names=names)


def _norm(config: Config) -> Any:
    """(name, size) -> a norm of the configuration's kind."""
    kind, e = text(config, "norm_type", "ZeroCenteredGatedNorm"), eps(config)
    if kind not in OFFSETS:
        raise UnsupportedModelError(f"config.json: norm_type: {kind!r:.80} is not supported; {', '.join(OFFSETS)} are")
    offset, factor = OFFSETS[kind], real(config, "layernorm_gating_weight", 1e-6, 1e6, default=2.0)

    def build(name: str, size: int) -> GatedNorm:
        names = "", "gate_up_projection", "gate_down_projection"
        return GatedNorm(name, size, e, 16, offset, factor, names)

    return build


def _norms(config: Config, norm: Any) -> Norms:
    kind = text(config, "layernorm_type", "pre_post")
    if kind not in ("pre", "post", "pre_post"):
        raise UnsupportedModelError(f"config.json: layernorm_type: {kind!r:.80} is not supported; pre, post and pre_post are")
    before, after = kind != "post", kind != "pre"
    return Norms(
        mixer=norm("input_layernorm") if before else None, mixer_out=norm("post_self_attn_layernorm") if after else None,
        ffn=norm("post_attention_layernorm") if before else None,
        ffn_out=norm("post_feedforward_layernorm") if after else None,
    )  # fmt: skip


def _kinds(config: Config, count: int) -> tuple[str, ...]:
    """By `layer_types`, where attention has two names, or by the numbers of `full_attention_layers`."""
    section, full = config.get("layer_types"), config.get("full_attention_layers") or []
    if isinstance(section, list):
        section = [FULL if kind == "attention" else kind for kind in section]
    elif not isinstance(full, list) or not set(full) <= set(range(count)):
        raise CheckpointError(f"config.json: full_attention_layers: must be a list of numbers from 0 to {count - 1}")
    absent = [FULL if i in full else LINEAR for i in range(count)]
    return layer_types({**config, "layer_types": section}, absent, known=(FULL, LINEAR))


def _latent(config: Config) -> LatentAttention:
    """The scale of the latent of q is a factor of scores."""
    gated, hidden, norm = flag(config, "gated_attention", True), hidden_size(config), _norm(config)("", 1)
    result = latent(
        config, interleaved=flag(config, "rope_interleave", True), gate="gate_proj" if gated else "", gate_values=gated,
        eps=eps(config), gated_norm=norm,
    )  # fmt: skip
    if not flag(config, "use_mla_scaling_factor", True):
        return result
    sharper = (hidden / result.q_latent) ** 0.5 if result.q_latent else 1.0
    return replace(result, scale=result.scale * sharper, latent_scale=(hidden / result.latent) ** 0.5)


def _delta(config: Config) -> Mixer:
    centred = "zero_centered" in text(config, "linear_gating_type", "").lower()
    gate = text(config, "output_gate_type", "sigmoid")
    if gate not in ("sigmoid", "silu") or (centred and gate != "sigmoid"):
        raise UnsupportedModelError(f"config.json: output_gate_type: {gate!r:.80} is not supported; sigmoid is")
    return replace(
        build_delta(config, grouped=True), gate=gate, norm_offset=1.0 if centred else 0.0, name="self_attn"
    )  # fmt: skip
