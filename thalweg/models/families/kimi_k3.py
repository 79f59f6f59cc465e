"""Kimi K3, for text: delta nets with per-channel decay, gated NoPE latent attention (MLA), SiTU activations, experts of
projected inputs, attention over depth instead of a residual stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.checkpoint.spelling import NAMES
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import ACTIVATIONS, act, decoder, eps, hidden_size, layer_count, mlp
from thalweg.models.families.deepseek import drafts
from thalweg.models.families.groups import check_keys
from thalweg.models.families.mixtures import sigmoid_mixture
from thalweg.models.families.multimodal import blind
from thalweg.models.spec import (
    DepthAttention,
    KimiDelta,
    LatentAttention,
    Layer,
    Mixer,
    ModelSpec,
    MoE,
    Norm,
    Norms,
    ResidualBlocks,
)

_KEYS = (
    "full_attn_layers", "kda_layers", "num_heads", "head_dim", "short_conv_kernel_size", "gate_lower_bound",
    "use_full_rank_gate",
)  # fmt: skip
"""Of `linear_attn_config`."""


def kimi_k3(config: Config) -> ModelSpec:
    config = {**{ours: config[theirs] for theirs, ours in NAMES["kimi_linear"].items() if theirs in config}, **config}
    section: Any = config.get("linear_attn_config")
    if not isinstance(section, dict) or "kda_layers" not in section:
        raise CheckpointError("config.json: linear_attn_config: must be an object with the numbers of kda_layers")
    check_keys(section, _KEYS, "linear_attn_config")
    if not flag(config, "mla_use_nope", True) or text(config, "moe_router_activation_func", "sigmoid") != "sigmoid":
        raise UnsupportedModelError(
            "config.json: mla_use_nope, moe_router_activation_func: this family only supports NoPE attention, and sigmoid"
        )
    config = {**config, "rms_norm_eps": eps(config, default=1e-5)}
    hidden, e, count = hidden_size(config), eps(config), layer_count(config)
    linear = [i + 1 in section["kda_layers"] for i in range(count)]
    mixers: dict[bool, Mixer] = {True: _delta(config, section), False: _latent(config)}
    activation, moe = _activation(config), _mixture(config)
    plain = mlp(config, act=activation)
    every, dense = integer(config, "moe_layer_freq", default=1), integer(config, "first_k_dense_replace", low=0, default=0)
    parts = [plain if moe is None or i < dense or i % every else moe for i in range(count)]
    first, second = Norm("input_layernorm", hidden, e), Norm("post_attention_layernorm", hidden, e)
    names = drafts(config)
    if config.get("attn_res_block_size") is None:
        both = Norms(mixer=first, ffn=second)
        layers = [Layer(mixers[kind], part, both) for kind, part in zip(linear, parts, strict=True)]
        return blind(decoder(config, layers, names=names))
    run = integer(config, "attn_res_block_size")
    feed, layers = DepthAttention(eps=e, name="mlp_res"), []
    for i, (kind, part) in enumerate(zip(linear, parts, strict=True)):
        attend = DepthAttention(eps=e, name="self_attention_res", begins=i % run == 0)
        layers += [
            Layer(mixers[kind], None, Norms(mixer=first), around=attend),
            Layer(None, part, Norms(ffn=second), around=feed),
        ]
    spec = decoder(
        config, layers, numbers=tuple(i // 2 for i in range(2 * count)), names=names,
        streams=ResidualBlocks(count=-(-count // run) + 1, eps=e),
    )  # fmt: skip
    return blind(spec)


def _activation(config: Config) -> str:
    """SiTU: b tanh(gate / b) sigmoid(gate) times c tanh(up / c), or times up where c is null."""
    if text(config, "hidden_act", "situ") != "situ":
        return act(config, known=ACTIVATIONS)

    def bound(key: str, absent: float) -> float:
        return real(config, key, 1e-6, 1e6, default=absent) if config.get(key) is not None else absent

    return f"situ_{bound('activation_situ_beta', 1.0):g}_{bound('activation_situ_linear_beta', 0.0):g}"


def _delta(config: Config, section: Config) -> KimiDelta:
    where, heads = "config.json: linear_attn_config", integer(section, "num_heads", where="config.json: linear_attn_config")
    dim, lowest = integer(section, "head_dim", high=1 << 16, where=where), section.get("gate_lower_bound")
    return KimiDelta(
        heads=heads, dim=dim, kernel=integer(section, "short_conv_kernel_size", low=2, high=1 << 16, where=where),
        eps=eps(config),
        floor=0.0 if lowest is None else real(section, "gate_lower_bound", -1e3, -1e-3, where=where), flat=True,
        rates=max(heads, dim), full_gate=flag(section, "use_full_rank_gate", False),
    )  # fmt: skip


def _latent(config: Config) -> LatentAttention:
    def size(key: str) -> int:
        return integer(config, key, high=1 << 20)

    gated = flag(config, "mla_use_output_gate", False)
    return LatentAttention(
        heads=size("num_attention_heads"), latent=size("kv_lora_rank"), nope_dim=size("qk_nope_head_dim"), rope=None,
        value_dim=size("v_head_dim"), still=size("qk_rope_head_dim"), gate="g_proj" if gated else "", gate_values=gated,
        q_latent=0 if config.get("q_lora_rank") is None else size("q_lora_rank"),
    )  # fmt: skip


def _mixture(config: Config) -> MoE | None:
    """Of layers with experts, of a model that has some."""
    if not config.get("num_experts"):
        return None
    moe = sigmoid_mixture(
        {"n_shared_experts": 0, "num_experts_per_tok": 16, **config, "hidden_act": "silu"}, experts="num_experts",
        act=(activation := _activation(config)), name="block_sparse_moe", gate="w1", up="w3", down="w2",
    )  # fmt: skip
    if moe.shared is not None:
        moe = replace(moe, shared=replace(moe.shared, act=activation))
    width = config.get("routed_expert_hidden_size")
    if width is None:
        return moe
    width = integer(config, "routed_expert_hidden_size", high=1 << 20)
    normed = Norm("routed_expert_norm", width, eps(config)) if flag(config, "latent_moe_use_norm", False) else None
    return replace(
        moe, latent=width, latents=("routed_expert_down_proj", "routed_expert_up_proj"), sum_norm=normed
    )  # fmt: skip
