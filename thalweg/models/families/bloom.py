"""Bloom and MPT: ALiBi, layer norms, ungated MLPs."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import clip, decoder, head_size, hidden_size, layer_count
from thalweg.models.families.groups import ANY_CONFIG, check_keys
from thalweg.models.spec import Attention, Layer, LayerNorm, ModelSpec, Names, Norms, UngatedMLP


def slopes(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """Powers of two, evenly down to 2 ** -most. Where heads are no power of two: those of the power below, then every other one
    of the power above."""
    whole = 1 << (heads.bit_length() - 1)
    found = [2.0 ** (-most * (i + 1) / whole) for i in range(whole)]
    between = [2.0 ** (-most * (i + 1) / (2 * whole)) for i in range(0, 2 * whole, 2)]
    return tuple((found + between)[:heads])


def bloom(config: Config) -> ModelSpec:
    if flag(config, "apply_residual_connection_post_layernorm", False):
        raise UnsupportedModelError(
            "config.json: apply_residual_connection_post_layernorm: this version only adds the residual before the norm"
        )
    hidden, heads = hidden_size(config), integer(config, "num_attention_heads")

    def norm(name: str) -> LayerNorm:
        return LayerNorm(name, hidden, real(config, "layer_norm_epsilon", default=1e-5))

    layer = Layer(
        Attention(
            heads=heads, kv_heads=heads, head_dim=head_size(config), slopes=slopes(heads), bias=True, out_bias=True,
            name="self_attention", fused="query_key_value", grouped=True, out="dense",
        ),
        UngatedMLP(inner=4 * hidden, act="gelu_tanh", bias=True, up="dense_h_to_4h", down="dense_4h_to_h"),
        Norms(mixer=norm("input_layernorm"), ffn=norm("post_attention_layernorm")),
    )  # fmt: skip
    return decoder(
        config, [layer] * layer_count(config), norm=norm("ln_f"), embed_norm=norm("word_embeddings_layernorm"),
        tied=flag(config, "tie_word_embeddings", True), root="transformer.", layer="h.{}.", embed="word_embeddings",
        names=Names(replace=tuple((each, f"transformer.{each}") for each in ("h.", "word_embeddings", "ln_f."))),
    )  # fmt: skip


_ATTN_KEYS = frozenset(
    {
        "alibi", "alibi_bias_max", "attn_impl", "attn_pdrop", "attn_type", "attn_uses_sequence_id", "clip_qkv", "prefix_lm",
        "qk_ln", "rope", "rope_dail_config", "rope_hf_config", "rope_impl", "rope_theta", "softmax_scale",
    }
)  # fmt: skip
"""Of `attn_config`. Those of `rope` count where it is true, which is refused."""


def mpt(config: Config) -> ModelSpec:
    hidden, heads = hidden_size(config), integer(config, "num_attention_heads")
    section: Any = config.get("attn_config") or {}
    if not isinstance(section, dict):
        section = {}
    where, usual = "config.json: attn_config", {"sliding_window_size": -1, "fused_qkv": True}
    check_keys({k: v for k, v in section.items() if usual.get(k) != v}, ANY_CONFIG | _ATTN_KEYS, "attn_config")
    other = next((k for k in ("qk_ln", "prefix_lm", "attn_uses_sequence_id", "rope") if section.get(k)), None)
    if not section.get("alibi", True) or section.get("attn_type", "multihead_attention") != "multihead_attention":
        other = "alibi" if not section.get("alibi", True) else "attn_type"
    if other is None and not flag(config, "no_bias", True):
        other, where = "no_bias", "config.json"
    if other is not None:
        raise UnsupportedModelError(f"{where}: {other}: this version serves MPT with ALiBi, full MHA, and no biases")

    def norm(name: str) -> LayerNorm:
        return LayerNorm(name, hidden, real(config, "layer_norm_epsilon", default=1e-5), bias=False)

    layer = Layer(
        Attention(
            heads=heads, kv_heads=heads, head_dim=head_size(config),
            slopes=slopes(heads, real(section, "alibi_bias_max", 1e-3, 1e3, default=8.0, where=where)),
            scale=real(section, "softmax_scale", 1e-6, 1e6, default=head_size(config) ** -0.5, where=where), name="attn",
            parts=("Wqkv.q", "Wqkv.k", "Wqkv.v"), fused="Wqkv", out="out_proj", clip=clip(section, where),
        ),
        UngatedMLP(
            inner=integer(config, "expansion_ratio", high=64, default=4) * hidden, act="gelu", name="ffn", up="up_proj",
            down="down_proj",
        ),
        Norms(mixer=norm("norm_1"), ffn=norm("norm_2")),
    )  # fmt: skip
    return decoder(
        config, [layer] * layer_count(config), norm=norm("norm_f"), tied=flag(config, "tie_word_embeddings", True),
        root="transformer.", layer="blocks.{}.", embed="wte",
    )  # fmt: skip
