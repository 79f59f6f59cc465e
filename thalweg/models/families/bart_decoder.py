"""The decoders of BART and its relatives by themselves: causal language models without cross attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import UnsupportedModelError
from thalweg.models.families import bart
from thalweg.models.spec import Layer, LayerNorm, LearnedEmbedding, ModelSpec, Names, Norms

ENCODER = {"encoder_layers": 1, "encoder_attention_heads": 1, "encoder_ffn_dim": 1}
"""Of an encoder that is declared, and left out."""


def bart_decoder(config: Config) -> ModelSpec:
    return decode_alone(config, bart.bart)


def mbart_decoder(config: Config) -> ModelSpec:
    return decode_alone(config, bart.mbart)


def plbart_decoder(config: Config) -> ModelSpec:
    return decode_alone(config, bart.plbart)


def mvp_decoder(config: Config) -> ModelSpec:
    return decode_alone(config, bart.mvp)


def blenderbot_decoder(config: Config) -> ModelSpec:
    return decode_alone(config, bart.blenderbot)


def blenderbot_small_decoder(config: Config) -> ModelSpec:
    return decode_alone(config, bart.blenderbot_small)


def marian_decoder(config: Config) -> ModelSpec:
    return decode_alone(config, bart.marian)


def pegasus_decoder(config: Config) -> ModelSpec:
    return decode_alone(config, bart.pegasus)


def bigbird_pegasus_decoder(config: Config) -> ModelSpec:
    """Pegasus with learned positions, and another name of the last norm."""
    rows = integer(config, "max_position_embeddings", high=1 << 16)
    bias = flag(config, "use_bias", False)
    config = {"activation_function": "gelu_new", **config}
    result = decode_alone(
        config, lambda c: bart.build(c, LearnedEmbedding("embed_positions", rows), pre=True, bias=bias, scale=True)
    )
    return replace(result, norm=LayerNorm("decoder.layernorm_embedding", result.hidden, bart.EPS))


def trocr_decoder(config: Config) -> ModelSpec:
    """The text part of TrOCR."""
    if not flag(config, "use_learned_position_embeddings", True):
        raise UnsupportedModelError("config.json: use_learned_position_embeddings: false is not supported")
    rows = integer(config, "max_position_embeddings", high=1 << 16, default=512) + bart.FIRST
    table = LearnedEmbedding("embed_positions", rows, first=bart.FIRST)
    normed = flag(config, "layernorm_embedding", True)
    result = decode_alone(config, lambda c: bart.build(c, table, pre=False, embed_norm=normed))
    return replace(result, head="output_projection")


def decode_alone(config: Config, family: Callable[[Config], ModelSpec]) -> ModelSpec:
    """The decoder of a family's model, with one declared layer for each of the files."""
    both = family({**config, **ENCODER})
    layers = tuple(_join(own, cross) for own, cross in zip(both.layers[::2], both.layers[1::2], strict=True))
    unread = [f"model.decoder.layers.{i}.encoder_attn{part}." for i in range(len(layers)) for part in ("", "_layer_norm")]
    sines = [f"model.{each.name}." for each in both.learned if each.sines]
    return replace(
        both, layers=layers, numbers=(), text=None, logit_bias="", embed="decoder.embed_tokens",
        names=Names(skip=("model.encoder.", "model.shared.", "model.final_logits_bias", *sines, *unread)),
    )  # fmt: skip


def _join(own: Layer, cross: Layer) -> Layer:
    norms = Norms(
        mixer=own.norms.mixer, mixer_sum=own.norms.mixer_sum, ffn=cross.norms.ffn, ffn_sum=cross.norms.ffn_sum
    )  # fmt: skip
    return replace(own, ffn=cross.ffn, norms=norms)
