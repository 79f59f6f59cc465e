"""OPT: learned positions, layer norms, biases, ungated ReLU MLPs."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import UNGATED, act, decoder, head_size, hidden_size, layer_count
from thalweg.models.spec import Attention, Layer, LayerNorm, LearnedEmbedding, ModelSpec, Names, Norms, UngatedMLP

BEFORE = 2
"""Rows of the table of positions that no token has."""


def opt(config: Config) -> ModelSpec:
    hidden, e = hidden_size(config), 1e-5
    if integer(config, "word_embed_proj_dim", default=hidden) != hidden:
        raise UnsupportedModelError("config.json: word_embed_proj_dim: this version has no projections around the layers")
    if not flag(config, "layer_norm_elementwise_affine", True) or flag(config, "_remove_final_layer_norm", False):
        raise UnsupportedModelError("config.json: this version serves OPT with all its norms, and their weights")
    heads, bias = integer(config, "num_attention_heads"), flag(config, "enable_bias", True)
    mixer, ffn = LayerNorm("self_attn_layer_norm", hidden, e), LayerNorm("final_layer_norm", hidden, e)
    first = flag(config, "do_layer_norm_before", True)
    layer = Layer(
        Attention(
            heads=heads, kv_heads=heads, head_dim=head_size(config), bias=bias, out_bias=bias, out="out_proj"
        ),
        UngatedMLP(
            inner=integer(config, "ffn_dim", high=1 << 24), act=act(config, "activation_function", "relu", UNGATED),
            bias=bias, name="",
        ),
        Norms(mixer=mixer, ffn=ffn) if first else Norms(mixer_sum=mixer, ffn_sum=ffn),
    )  # fmt: skip
    return decoder(
        config, [layer] * layer_count(config), norm=LayerNorm("final_layer_norm", hidden, e) if first else None,
        tied=flag(config, "tie_word_embeddings", True), root="model.decoder.",
        learned=(LearnedEmbedding("embed_positions", integer(config, "max_position_embeddings", high=1 << 24) + BEFORE,
        first=BEFORE),),
        names=Names(replace=(("decoder.", "model.decoder."),)),
    )  # fmt: skip
