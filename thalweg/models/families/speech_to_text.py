"""Speech2Text (fairseq S2T): gated convolutions over a spectrum, and an encoder and a decoder as of mBART."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families import bart
from thalweg.models.families.common import hidden_size
from thalweg.models.spec import GatedSource, Layer, LayerNorm, LearnedEmbedding, ModelSpec, Names, Norms

EPS = 1e-5
LONGEST = 3000
"""Hundredths of a second of the longest clip: the models were trained on clips of at most 30 seconds."""
FIRST = 2
"""The row of position 0: that after padding's."""
MOST_TAPS, MOST_CONVS = 1 << 10, 16


def speech_to_text(config: Config) -> ModelSpec:
    hidden = hidden_size(config)
    if hidden % 2 or hidden < 4:
        raise CheckpointError(f"config.json: d_model: sines and cosines need an even number from 4, not {hidden}")
    if integer(config, "pad_token_id", low=0, default=1) != FIRST - 1:
        raise UnsupportedModelError("config.json: pad_token_id: only 1 is supported, because positions follow it")
    if integer(config, "input_channels", default=1) != 1:
        raise UnsupportedModelError("config.json: input_channels: only 1 is supported")
    section = {"activation_function": "relu", **config}
    scale = hidden**0.5 if flag(config, "scale_embedding", True) else 1.0
    encoder = _encoder(section, hidden, scale)
    layers = bart.decoder_layers(section, True, width=hidden, sources=encoder.sources)
    rows = FIRST + integer(config, "max_position_embeddings", high=1 << 16)
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=layers, numbers=tuple(i // 2 for i in range(len(layers))),
        norm=LayerNorm("decoder.layer_norm", hidden, EPS), embed_scale=scale,
        learned=(LearnedEmbedding("decoder.embed_positions", rows, first=FIRST, sines=hidden // 2 - 1),), speech=encoder,
        tied=flag(config, "tie_word_embeddings", True), layer="decoder.layers.{}.", embed="decoder.embed_tokens",
        names=Names(skip=tuple(f"model.{side}.embed_positions." for side in ("encoder", "decoder"))),
    )  # fmt: skip


def _encoder(config: Config, hidden: int, scale: float) -> GatedSource:
    norms = Norms(mixer=_norm("self_attn", hidden), ffn=_norm("final", hidden))
    layer = Layer(
        bart.attention(config, "encoder_attention_heads", hidden, False), bart.feed_forward(config, "encoder_ffn_dim"), norms
    )
    taps, channels = _taps(config), integer(config, "conv_channels", high=1 << 20, default=1024)
    if channels % 2:
        raise CheckpointError(f"config.json: conv_channels must be even, for gates, not {channels}")
    longest = min(LONGEST, integer(config, "max_source_positions", high=1 << 20, default=6000))
    more: dict[str, Any] = {"taps": taps, "channels": channels, "scale": scale, "first": FIRST, "longest": longest}
    sources = longest
    for _ in taps:
        sources = (sources - 1) // 2 + 1
    return GatedSource(
        bins=integer(config, "input_feat_per_channel", high=1 << 12, default=80), sources=sources, hidden=hidden,
        layers=(layer,) * integer(config, "encoder_layers", high=bart.MOST_LAYERS), norm=LayerNorm("layer_norm", hidden, EPS),
        **more,
    )  # fmt: skip


def _taps(config: Config) -> tuple[int, ...]:
    found = config.get("conv_kernel_sizes", (5, 5))
    if (
        not isinstance(found, list | tuple)
        or not 0 < len(found) <= MOST_CONVS
        or not all(type(n) is int and 0 < n < MOST_TAPS and n % 2 for n in found)
    ):
        raise CheckpointError("config.json: conv_kernel_sizes: must be a list of odd numbers")
    return tuple(found)


def _norm(name: str, hidden: int) -> LayerNorm:
    return LayerNorm(f"{name}_layer_norm", hidden, EPS)
