"""Moonshine: an encoder of samples, and a decoder with cross attention in every layer, both with rotary positions."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import UNGATED, act, hidden_size, rope
from thalweg.models.spec import (
    MLP,
    Attention,
    CrossAttention,
    Layer,
    LayerNorm,
    ModelSpec,
    Norms,
    Rope,
    UngatedMLP,
    WaveformEncoder,
)  # fmt: skip
from thalweg.models.spec.waveform import count_sources

EPS = 1e-5
MOST_LAYERS = 1000
LONGEST, FRAME = 3000, 160
"""Hundredths of a second of a clip, and samples in one."""
TOKENS = 0.065
"""Of a transcript, at most, for each of them."""


def moonshine(config: Config) -> ModelSpec:
    hidden, heads = hidden_size(config), _heads(config, "decoder")
    longest = min(LONGEST, int(integer(config, "max_position_embeddings") / TOKENS))
    sources = count_sources(longest * FRAME)
    head_dim = hidden // heads
    cross = CrossAttention(heads=heads, head_dim=head_dim, sources=sources, varies=True, width=hidden, out="o_proj")
    if flag(config, "attention_bias", False):
        raise UnsupportedModelError("config.json: attention_bias: this version serves Moonshine without biases of attention")
    own = Layer(_attention(config, "decoder", True), None, Norms(mixer=_norm("input_layernorm", hidden)))
    ffn = MLP(
        inner=integer(config, "intermediate_size", high=1 << 24), act=act(config, "decoder_hidden_act", "silu"),
        bias=True, fused="fc1", swapped=True, down="fc2",
    )  # fmt: skip
    attends_source = Layer(
        cross, ffn, Norms(mixer=_norm("post_attention_layernorm", hidden), ffn=_norm("final_layernorm", hidden))
    )
    count = integer(config, "num_hidden_layers", high=MOST_LAYERS)
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=(own, attends_source) * count,
        numbers=tuple(i // 2 for i in range(2 * count)), norm=_norm("decoder.norm", hidden),
        speech=_encoder(config, hidden, longest, sources), tied=flag(config, "tie_word_embeddings", True),
        layer="decoder.layers.{}.", embed="decoder.embed_tokens", head="proj_out",
    )  # fmt: skip


def _encoder(config: Config, hidden: int, longest: int, sources: int) -> WaveformEncoder:
    ffn = UngatedMLP(
        inner=integer(config, "intermediate_size", high=1 << 24),
        act=act(config, "encoder_hidden_act", "gelu", UNGATED),
        bias=True,
    )
    norms = Norms(mixer=_norm("input_layernorm", hidden), ffn=_norm("post_attention_layernorm", hidden))
    layer = Layer(_attention(config, "encoder", False), ffn, norms)
    return WaveformEncoder(
        sources=sources, longest=longest, hidden=hidden, norm=_norm("layer_norm", hidden), rope=_rope(config, "encoder"),
        layers=(layer,) * integer(config, "encoder_num_hidden_layers", high=MOST_LAYERS, default=6),
    )  # fmt: skip


def _attention(config: Config, side: str, causal: bool) -> Attention:
    heads = _heads(config, side)
    return Attention(
        heads=heads, kv_heads=heads, head_dim=hidden_size(config) // heads, causal=causal, rope=_rope(config, side)
    )


def _rope(config: Config, side: str) -> Rope:
    """Nine tenths of each head turn, if the file has no other share."""
    given = {**config, "partial_rotary_factor": config.get("partial_rotary_factor", 0.9)}
    return rope(given, hidden_size(config) // _heads(config, side), partial=True, interleaved=True)


def _heads(config: Config, side: str) -> int:
    name, hidden = f"{side}_num_attention_heads", hidden_size(config)
    fallback = integer(config, "num_attention_heads", high=1 << 16, default=8) if side == "decoder" else 8
    heads = integer(config, name, high=1 << 16, default=fallback)
    if hidden % heads:
        raise CheckpointError(f"config.json: hidden_size ({hidden}) must be a multiple of {name} ({heads})")
    grouped = config.get(f"{side}_num_key_value_heads")
    if grouped not in (None, heads):
        raise UnsupportedModelError(f"config.json: {side}_num_key_value_heads: grouped queries are not supported for Moonshine")
    return heads


def _norm(name: str, hidden: int) -> LayerNorm:
    return LayerNorm(name, hidden, EPS, bias=False)
