"""GPT-NeoX Japanese: GPT-NeoX with one part after the other, and one bias, of the last attention."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.families.common import (
    UNGATED,
    act,
    attention,
    decoder,
    head_size,
    hidden_size,
    layer_count,
    rope,
    ungated_mlp,
)
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Names, Norms


def gpt_neox_japanese(config: Config) -> ModelSpec:
    hidden, e, head_dim = hidden_size(config), real(config, "layer_norm_eps", default=1e-5), head_size(config)
    config = {
        "rope_theta": real(config, "rotary_emb_base", default=10_000.0),
        "partial_rotary_factor": real(config, "rotary_pct", 0, 1, default=1.0), **config,
        "num_key_value_heads": integer(config, "num_attention_heads"),
        "intermediate_size": hidden * integer(config, "intermediate_multiple_size", default=4),
    }  # fmt: skip
    heads = attention(
        config, head_dim=head_dim, rope=rope(config, head_dim, partial=True), name="attention", fused="query_key_value",
        grouped=True, out="dense",
    )  # fmt: skip
    layer = Layer(
        heads,
        ungated_mlp(config, act=act(config, default="gelu", known=UNGATED), up="dense_h_to_4h", down="dense_4h_to_h"),
        Norms(mixer=LayerNorm("input_layernorm", hidden, e), ffn=LayerNorm("post_attention_layernorm", hidden, e)),
    )
    layers = [*[layer] * (layer_count(config) - 1), replace(layer, mixer=replace(heads, out_bias=True))]
    return decoder(
        config, layers, norm=LayerNorm("final_layer_norm", hidden, e), root="gpt_neox_japanese.", embed="embed_in",
        head="embed_out", tied=flag(config, "tie_word_embeddings", True),
        names=Names(inside=((".attention.dense_bias", ".attention.dense.bias"),)),
    )  # fmt: skip
