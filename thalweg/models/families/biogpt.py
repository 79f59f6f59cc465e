"""BioGPT: learned positions, layer norms, biases, ungated MLPs, scaled embeddings."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import UNGATED, act, decoder, head_size, hidden_size, layer_count, ungated_mlp
from thalweg.models.families.opt import BEFORE
from thalweg.models.spec import Attention, Layer, LayerNorm, LearnedEmbedding, ModelSpec, Norms


def biogpt(config: Config) -> ModelSpec:
    hidden, heads, e = hidden_size(config), integer(config, "num_attention_heads"), 1e-5
    layer = Layer(
        Attention(heads=heads, kv_heads=heads, head_dim=head_size(config), bias=True, out_bias=True, out="out_proj"),
        ungated_mlp(config, act=act(config, default="gelu", known=UNGATED), bias=True, name=""),
        Norms(mixer=LayerNorm("self_attn_layer_norm", hidden, e), ffn=LayerNorm("final_layer_norm", hidden, e)),
    )
    rows = integer(config, "max_position_embeddings", high=1 << 24) + BEFORE
    return decoder(
        config, [layer] * layer_count(config), norm=LayerNorm("layer_norm", hidden, e), root="biogpt.",
        learned=(LearnedEmbedding("embed_positions", rows, first=BEFORE),), head="output_projection",
        embed_scale=hidden**0.5 if flag(config, "scale_embedding", True) else 1.0,
        tied=flag(config, "tie_word_embeddings", True),
    )  # fmt: skip
