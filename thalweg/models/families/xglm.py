"""XGLM: sinusoidal positions, layer norms, biases, ungated MLPs, scaled embeddings."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import UNGATED, act, decoder, head_size, hidden_size, layer_count
from thalweg.models.spec import Attention, Layer, LayerNorm, LearnedEmbedding, ModelSpec, Names, Norms, UngatedMLP

BEFORE = 2
"""Rows of the table of positions that no token has."""


def xglm(config: Config) -> ModelSpec:
    hidden, heads, e = hidden_size(config), integer(config, "num_attention_heads"), 1e-5
    layer = Layer(
        Attention(heads=heads, kv_heads=heads, head_dim=head_size(config), bias=True, out_bias=True, out="out_proj"),
        UngatedMLP(
            inner=integer(config, "ffn_dim", high=1 << 24), act=act(config, "activation_function", "gelu", UNGATED),
            bias=True, name="",
        ),
        Norms(mixer=LayerNorm("self_attn_layer_norm", hidden, e), ffn=LayerNorm("final_layer_norm", hidden, e)),
    )  # fmt: skip
    positions = LearnedEmbedding(
        "embed_positions", integer(config, "max_position_embeddings", high=1 << 24) + BEFORE, first=BEFORE,
        sines=hidden // 2 - 1,
    )  # fmt: skip
    return decoder(
        config, [layer] * layer_count(config), norm=LayerNorm("layer_norm", hidden, e), learned=(positions,),
        embed_scale=hidden**0.5 if flag(config, "scale_embedding", True) else 1.0,
        tied=flag(config, "tie_word_embeddings", True), names=Names(skip=("model.embed_positions.",)),
    )  # fmt: skip
