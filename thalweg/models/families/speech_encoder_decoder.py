"""SpeechEncoderDecoder: any speech encoder and any decoder, of which wav2vec 2.0 with mBART is supported (XLS-R)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.bart import EPS, FIRST, decoder_layers
from thalweg.models.families.common import hidden_size
from thalweg.models.families.towers.common import outer_config
from thalweg.models.families.wav2vec import OLD_NAMES, wav2vec2
from thalweg.models.spec import LayerNorm, LearnedEmbedding, ModelSpec, Names, Wav2VecSource, Wav2VecSpec

NAMES = (
    ("decoder.model.decoder.", "model.decoder."), ("decoder.lm_head.", "lm_head."), ("encoder.", "model.encoder."),
    ("enc_to_dec_proj.", "model.enc_to_dec_proj."),
)  # fmt: skip
ROOT = "model.encoder."
LONGEST = 3000
"""Hundredths of a second of a clip."""


def speech_encoder_decoder(config: Config) -> ModelSpec:
    section = outer_config(config).get("audio_config")
    if not isinstance(section, dict):
        raise CheckpointError("config.json: encoder: missing")
    ear, kind = text(section, "model_type", "wav2vec2"), text(config, "model_type", "mbart")
    if (ear, kind) != ("wav2vec2", "mbart"):
        raise UnsupportedModelError(
            f"config.json: encoder and decoder: {ear!r:.40} and {kind!r:.40} are not supported; wav2vec2 and mbart are"
        )
    hidden = hidden_size(config)
    source = _source(section, config, hidden)
    layers = decoder_layers(config, True, sources=source.sources, width=hidden)
    rows = integer(config, "max_position_embeddings", high=1 << 16, default=1024) + FIRST
    skip = ("encoder.masked_spec_embed", "encoder.encoder.pos_conv_embed.batch_norm.num_batches_tracked")
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=layers,
        numbers=tuple(i // 2 for i in range(len(layers))), norm=LayerNorm("decoder.layer_norm", hidden, EPS),
        embed_norm=LayerNorm("decoder.layernorm_embedding", hidden, EPS), speech=source,
        learned=(LearnedEmbedding("decoder.embed_positions", rows, first=FIRST),),
        tied=flag(config, "tie_word_embeddings", True), layer="decoder.layers.{}.", embed="decoder.embed_tokens",
        embed_scale=hidden**0.5 if flag(config, "scale_embedding", False) else 1.0,
        names=Names(replace=NAMES, skip=skip, inside=OLD_NAMES),
    )  # fmt: skip


def _source(section: dict[str, Any], config: Config, hidden: int) -> Wav2VecSource:
    """hidden: of the decoder."""
    sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 32}
    result = wav2vec2({**sizes, **section, "add_adapter": False}).audio
    assert isinstance(result, Wav2VecSpec)
    inside = result.hidden
    outputs = integer(section, "output_hidden_size", high=1 << 20, default=inside)
    if outputs != inside:
        raise UnsupportedModelError(f"config.json: encoder: output_hidden_size: must be hidden_size, {inside}")
    width = config.get("cross_attention_hidden_size")
    if width not in (None, hidden) or (width is not None and inside != hidden):
        raise UnsupportedModelError(f"config.json: decoder: cross_attention_hidden_size: {width!r:.20} is not supported")
    encoder = replace(result, root=ROOT, head=None)
    found = Wav2VecSource(
        sources=0, hidden=hidden, layers=(), norm=LayerNorm("", hidden, EPS), longest=LONGEST, encoder=encoder,
        convs=integer(section, "num_adapter_layers", high=100, default=3) if flag(section, "add_adapter", False) else 0,
        taps=integer(section, "adapter_kernel_size", high=1 << 8, default=3),
        stride=integer(section, "adapter_stride", high=16, default=2),
        projection="" if inside == hidden else "model.enc_to_dec_proj",
    )  # fmt: skip
    return replace(found, sources=found.count_sources(encoder.frames))
