"""Falcon 7B, 40B, 180B and Falcon 2: parallel attention and MLP with one or two norms, fused q, k and v grouped by KV head."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import UNGATED, act, attention, decoder, hidden_size, layer_count
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms, UngatedMLP


def falcon(config: Config) -> ModelSpec:
    if flag(config, "alibi", False):
        raise UnsupportedModelError("config.json: alibi: this version has rotary positions for this family, and no biases")
    hidden, bias, heads = hidden_size(config), flag(config, "bias", False), integer(config, "num_attention_heads")
    new = flag(config, "new_decoder_architecture", False)
    kv = 1 if flag(config, "multi_query", True) else heads
    if new:
        kv = integer(config, "num_kv_heads", high=1 << 16, default=heads)
    layer = Layer(
        attention(
            {**config, "num_key_value_heads": kv}, bias=bias, out_bias=bias, name="self_attention", fused="query_key_value",
            grouped=True, out="dense",
        ),
        UngatedMLP(
            inner=integer(config, "ffn_hidden_size", high=1 << 24, default=4 * hidden),
            act=act(config, "activation", "gelu", UNGATED), bias=bias, up="dense_h_to_4h", down="dense_4h_to_h",
        ),
        _norms(config, new), parallel=new or flag(config, "parallel_attn", True),
    )  # fmt: skip
    return decoder(
        config, [layer] * layer_count(config), norm=_norm(config, "ln_f"), root="transformer.", layer="h.{}.",
        embed="word_embeddings", tied=flag(config, "tie_word_embeddings", True),
    )  # fmt: skip


def refined_web(config: Config) -> ModelSpec:
    """The first name of Falcon's class. Files of Falcon 40B have the number of KV heads, and all its later differences."""
    new = config.get("num_kv_heads") is not None
    return falcon({"new_decoder_architecture": new, **config})


def _norms(config: Config, new: bool) -> Norms:
    if new and integer(config, "num_ln_in_parallel_attn", low=1, high=2, default=2) == 2:
        return Norms(mixer=_norm(config, "ln_attn"), ffn=_norm(config, "ln_mlp"))
    alone = new or flag(config, "parallel_attn", True)
    return Norms(mixer=_norm(config, "input_layernorm"), ffn=None if alone else _norm(config, "post_attention_layernorm"))


def _norm(config: Config, name: str) -> LayerNorm:
    return LayerNorm(name, hidden_size(config), real(config, "layer_norm_epsilon", default=1e-5))
