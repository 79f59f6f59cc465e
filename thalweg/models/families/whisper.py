"""Whisper: a 30-second audio encoder, and a decoder with cross attention in every layer."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import UNGATED, act, hidden_size
from thalweg.models.spec import (
    Attention,
    CrossAttention,
    Layer,
    LayerNorm,
    LearnedEmbedding,
    ModelSpec,
    Norms,
    SpeechEncoder,
    UngatedMLP,
)  # fmt: skip

EPS = 1e-5
MOST_LAYERS = 1000
ENGLISH_VOCAB = 51_864
"""Tokens of the models for English only, one fewer than those of the multilingual ones."""


def whisper(config: Config) -> ModelSpec:
    hidden, sources = hidden_size(config), integer(config, "max_source_positions", high=1 << 16, default=1500)
    if config.get("scale_embedding"):
        raise UnsupportedModelError("config.json: scale_embedding: this version serves Whisper with embeddings as they are")
    heads = _heads(config, "decoder_attention_heads", hidden)
    cross = CrossAttention(heads=heads, head_dim=hidden // heads, sources=sources, width=hidden, bias=True)
    own = Layer(_attention(config, "decoder_attention_heads", hidden, True), None, Norms(mixer=_norm("self_attn", hidden)))
    attends_source = Layer(
        cross, _ffn(config, "decoder_ffn_dim"), Norms(mixer=_norm("encoder_attn", hidden), ffn=_norm("final", hidden))
    )
    count = integer(config, "decoder_layers", high=MOST_LAYERS)
    aligned = _aligned_heads(config, count, heads)
    pairs = ((own, replace(attends_source, mixer=replace(cross, aligned=aligned[i]))) for i in range(count))
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=tuple(layer for pair in pairs for layer in pair),
        numbers=tuple(i // 2 for i in range(2 * count)), norm=LayerNorm("decoder.layer_norm", hidden, EPS),
        learned=(LearnedEmbedding("decoder.embed_positions", integer(config, "max_position_embeddings", high=1 << 16)),),
        speech=_encoder(config, hidden, sources), tied=True, layer="decoder.layers.{}.", embed="decoder.embed_tokens",
        head="proj_out",
    )  # fmt: skip


def _aligned_heads(config: Config, layers: int, heads: int) -> list[tuple[int, ...]]:
    """Of each decoder layer, the heads that `alignment_heads` names."""
    pairs = config.get("alignment_heads") or []
    if not isinstance(pairs, list) or not all(_is_head(pair, layers, heads) for pair in pairs):
        raise CheckpointError(
            f"generation_config.json: alignment_heads: must be pairs of a decoder layer (below {layers}) and a head "
            f"(below {heads})"
        )
    return [tuple(sorted({head for layer, head in pairs if layer == i})) for i in range(layers)]


def _is_head(pair: object, layers: int, heads: int) -> bool:
    whole = isinstance(pair, list) and len(pair) == 2 and all(type(i) is int for i in pair)
    return whole and 0 <= pair[0] < layers and 0 <= pair[1] < heads  # type: ignore[index]


def _encoder(config: Config, hidden: int, sources: int) -> SpeechEncoder:
    layer = Layer(
        _attention(config, "encoder_attention_heads", hidden, False), _ffn(config, "encoder_ffn_dim"),
        Norms(mixer=_norm("self_attn", hidden), ffn=_norm("final", hidden)),
    )  # fmt: skip
    return SpeechEncoder(
        bins=integer(config, "num_mel_bins", high=1 << 12, default=80), sources=sources, hidden=hidden,
        layers=(layer,) * integer(config, "encoder_layers", high=MOST_LAYERS), norm=LayerNorm("layer_norm", hidden, EPS),
        multilingual=integer(config, "vocab_size") != ENGLISH_VOCAB,
    )  # fmt: skip


def _attention(config: Config, key: str, hidden: int, causal: bool) -> Attention:
    heads = _heads(config, key, hidden)
    return Attention(
        heads=heads, kv_heads=heads, head_dim=hidden // heads, causal=causal, bias=True, key_bias=False, out_bias=True,
        out="out_proj",
    )  # fmt: skip


def _heads(config: Config, key: str, hidden: int) -> int:
    heads = integer(config, key, high=1 << 16)
    if hidden % heads:
        raise CheckpointError(f"config.json: d_model ({hidden}) must be a multiple of {key} ({heads})")
    return heads


def _ffn(config: Config, key: str) -> UngatedMLP:
    inner = integer(config, key, high=1 << 24)
    return UngatedMLP(inner=inner, act=act(config, "activation_function", "gelu", UNGATED), bias=True, name="")


def _norm(name: str, hidden: int) -> LayerNorm:
    return LayerNorm(f"{name}_layer_norm", hidden, EPS)
