"""Canary and Cohere Transcribe: FastConformer, and a decoder with cross attention in every layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import UNGATED, act, hidden_size
from thalweg.models.families.parakeet import check_bins, encoder_config, fastconformer
from thalweg.models.families.towers.common import outer_config
from thalweg.models.spec import (
    Attention,
    ConformerSource,
    CrossAttention,
    Layer,
    LayerNorm,
    LearnedEmbedding,
    ModelSpec,
    Names,
    Norms,
    UngatedMLP,
)  # fmt: skip

EPS = 1e-5
MOST_LAYERS = 1000
CANARY_SECONDS, COHERE_SECONDS = 40, 35
"""Of the longest clip."""
COHERE_NAMES = (
    ("encoder.pre_encode.conv.", "encoder.subsampling.layers."), ("encoder.pre_encode.out.", "encoder.subsampling.linear."),
    ("self_attn.linear_q.", "self_attn.q_proj."), ("self_attn.linear_k.", "self_attn.k_proj."),
    ("self_attn.linear_v.", "self_attn.v_proj."), ("self_attn.linear_out.", "self_attn.o_proj."),
    ("self_attn.linear_pos.", "self_attn.relative_k_proj."), ("self_attn.pos_bias_", "self_attn.bias_"),
    ("conv.batch_norm.", "conv.norm."), ("transf_decoder._embedding.position_embedding.pos_enc", "decoder.pos_emb.weight"),
    ("transf_decoder._embedding.token_embedding.", "decoder.embed_tokens."),
    ("transf_decoder._embedding.layer_norm.", "decoder.embedding_layernorm."),
    ("transf_decoder._decoder.final_layer_norm.", "decoder.norm."), ("transf_decoder._decoder.layers.", "decoder.layers."),
    ("encoder_decoder_proj.", "decoder.proj."), ("first_sub_layer.", "self_attn."), ("second_sub_layer.", "encoder_attn."),
    ("third_sub_layer.dense_in.", "mlp.fc1."), ("third_sub_layer.dense_out.", "mlp.fc2."), (".query_net.", ".q_proj."),
    (".key_net.", ".k_proj."), (".value_net.", ".v_proj."), (".out_projection.", ".o_proj."),
    (".layer_norm_1.", ".input_layernorm."), (".layer_norm_2.", ".post_attention_layernorm."),
    (".layer_norm_3.", ".final_layernorm."), ("log_softmax.mlp.layer0.", "proj_out."),
)  # fmt: skip
"""Parts of names in the published files, and those that transformers loads them under."""
FRAMES = 100
"""Of a spectrum, in a second."""
CANARY = {"num_hidden_layers": 32, "num_mel_bins": 128, "scale_input": False}
COHERE = {
    "hidden_size": 1280, "num_hidden_layers": 48, "intermediate_size": 5120, "num_mel_bins": 128, "scale_input": False,
}  # fmt: skip
"""Encoder settings that files may omit."""


def canary(config: Config) -> ModelSpec:
    """Positions are sines and cosines divided by the root of their number. A layer norm follows, so that embeddings are
    multiplied by it instead."""
    hidden, section = hidden_size(config), {**CANARY, **encoder_config(outer_config(config))}
    if integer(section, "hidden_size", default=1024) != hidden:
        raise UnsupportedModelError(f"config.json: encoder_config: hidden_size must be that of decoder_config, {hidden}")
    rows = integer(config, "max_position_embeddings", high=1 << 16)
    positions = LearnedEmbedding("decoder.pos_emb", rows, sines=hidden // 2)
    result = _build(config, section, CANARY_SECONDS, "canary", positions, "", flag(config, "tie_word_embeddings", True))
    norm = LayerNorm("decoder.embedding_layernorm", hidden, EPS * hidden)
    names = replace(result.names, skip=(*result.names.skip, "model.decoder.pos_emb."))
    return replace(result, embed_norm=norm, embed_scale=hidden**0.5, names=names)


def cohere_asr(config: Config) -> ModelSpec:
    positions = LearnedEmbedding("decoder.pos_emb", integer(config, "max_position_embeddings", high=1 << 16))
    tied = flag(config, "tie_word_embeddings", False)
    section = {**COHERE, **encoder_config(config)}
    result = _build(config, section, COHERE_SECONDS, "cohere", positions, "decoder.proj", tied)
    return replace(result, names=replace(result.names, inside=COHERE_NAMES))


def _build(
    config: Config, section: dict[str, Any], seconds: int, form: str, positions: LearnedEmbedding, projection: str, tied: bool
) -> ModelSpec:
    """section: settings of the encoder. projection: of its vectors."""
    hidden, heads = hidden_size(config), integer(config, "num_attention_heads", high=1 << 16)
    if hidden % heads:
        raise CheckpointError(f"config.json: hidden_size ({hidden}) must be a multiple of num_attention_heads ({heads})")
    if config.get("num_key_value_heads") not in (None, heads):
        raise UnsupportedModelError("config.json: num_key_value_heads: grouped queries are not supported for this family")
    size = integer(config, "head_dim", high=1 << 16, default=hidden // heads)
    encoder = replace(check_bins(fastconformer(section, seconds, None)), root="model.encoder.")
    sources, bias = encoder.count_frames(seconds * FRAMES), flag(config, "attention_bias", True)
    own = Attention(heads=heads, kv_heads=heads, head_dim=size, causal=True, bias=bias, out_bias=bias)
    cross = CrossAttention(
        heads=heads, head_dim=size, sources=sources, varies=True, width=hidden, bias=bias, key_bias=bias, out="o_proj"
    )
    ffn = UngatedMLP(
        inner=integer(config, "intermediate_size", high=1 << 24), act=act(config, "hidden_act", "relu", UNGATED), bias=True
    )
    layers = (
        Layer(own, None, Norms(mixer=_norm("input_layernorm", hidden))),
        Layer(cross, ffn, Norms(mixer=_norm("post_attention_layernorm", hidden), ffn=_norm("final_layernorm", hidden))),
    )
    count = integer(config, "num_hidden_layers", high=MOST_LAYERS)
    counters = tuple(f"{encoder.root}layers.{i}.conv.norm.num_batches_tracked" for i in range(encoder.layers))
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=layers * count,
        numbers=tuple(i // 2 for i in range(2 * count)), norm=_norm("decoder.norm", hidden), learned=(positions,),
        embed_norm=_norm("decoder.embedding_layernorm", hidden), tied=tied, head_bias=True, layer="decoder.layers.{}.",
        embed="decoder.embed_tokens", head="proj_out", names=Names(skip=(*counters, "preprocessor.featurizer.")),
        speech=ConformerSource(
            bins=encoder.bins, sources=sources, hidden=hidden, layers=(), norm=_norm("", hidden), form=form,
            longest=seconds * FRAMES, encoder=encoder, projection=projection,
        ),
    )  # fmt: skip


def _norm(name: str, hidden: int) -> LayerNorm:
    return LayerNorm(name, hidden, EPS)
