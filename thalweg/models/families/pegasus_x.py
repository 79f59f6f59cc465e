"""PEGASUS-X: Pegasus with an encoder of blocks, and of learned vectors that attend to everything."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.bart import EPS, build
from thalweg.models.families.common import hidden_size
from thalweg.models.spec import GlobalLocalAttention, LayerNorm, LearnedEmbedding, Mixer, ModelSpec


def pegasus_x(config: Config) -> ModelSpec:
    hidden, heads = hidden_size(config), integer(config, "encoder_attention_heads", high=1 << 16, default=16)
    block, globals_ = integer(config, "block_size", default=512), integer(config, "num_global_tokens", default=32)
    if hidden % heads or hidden % 2 or block % 2:
        raise CheckpointError("config.json: d_model must be even, and a multiple of encoder_attention_heads; block_size even")
    rows = integer(config, "max_position_embeddings", high=1 << 16)
    positions = LearnedEmbedding("embed_positions", rows, sines=hidden // 2 - 1)

    def norm(name: str) -> LayerNorm:
        return LayerNorm(name, hidden, EPS)

    def reader(layer: int) -> Mixer:
        staggered = layer % 2 == 1 and flag(config, "stagger_local_blocks", True)
        return GlobalLocalAttention(
            heads=heads, head_dim=hidden // heads, block=block, staggered=staggered, globals=globals_,
            norm=norm("self_attn_layer_norm"), global_norm=norm("global_self_attn_layer_norm"),
        )  # fmt: skip

    sources = integer(config, "max_source_positions", high=rows, default=rows)
    result = build(config, positions, pre=True, scale=True, logit_bias="", bias=False, reader=reader, sources=sources)
    assert result.text is not None
    layers = tuple(replace(each, norms=replace(each.norms, mixer=None)) for each in result.text.layers)
    return replace(result, text=replace(result.text, layers=layers, globals=globals_))
