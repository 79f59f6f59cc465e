"""Encoder-decoders of two checkpoints of BERT, RoBERTa or BertGeneration: an encoder, and a decoder with cross attention (Rothe
et al. 2020, https://arxiv.org/abs/1907.12461)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.bert import encoder
from thalweg.models.families.bert_decoder import bert_generation, bert_lm, roberta_lm
from thalweg.models.families.common import hidden_size
from thalweg.models.families.roberta import first_position
from thalweg.models.families.towers.common import outer_config
from thalweg.models.spec import (
    Attention,
    CrossAttention,
    Layer,
    LayerNorm,
    LearnedEmbedding,
    ModelSpec,
    Names,
    Norms,
    TextEncoder,
)

DECODERS = {"bert": bert_lm, "bert-generation": bert_generation, "roberta": roberta_lm, "xlm-roberta": roberta_lm}
"""By the decoder's model_type."""
ROBERTA = ("roberta", "xlm-roberta")


def encoder_decoder(config: Config) -> ModelSpec:
    """Any encoder and any decoder, of which those in `DECODERS` are supported."""
    around, kind = outer_config(config), text(config, "model_type", "")
    inner: Any = around.get("encoder")
    if not isinstance(inner, dict):
        raise CheckpointError("config.json: encoder: must be an object with the sizes of the encoder")
    other = text(inner, "model_type", "")
    if kind not in DECODERS or other not in DECODERS:
        raise UnsupportedModelError(
            f"config.json: encoder and decoder: {other!r:.40} and {kind!r:.40} are not supported; {', '.join(DECODERS)} are"
        )
    if flag(around, "tie_encoder_decoder", False) or not flag(config, "add_cross_attention", False):
        raise UnsupportedModelError(
            "config.json: tie_encoder_decoder, decoder.add_cross_attention: a decoder without its own weights, or without "
            "cross attention, is not supported"
        )
    if hidden_size(inner) != hidden_size(config):
        raise UnsupportedModelError("config.json: encoder and decoder: hidden_size: different sizes are not supported")
    own, source = DECODERS[kind](config), _source(inner, other)
    return replace(
        own, layers=tuple(part for layer in own.layers for part in _split(config, layer, source.sources)),
        numbers=tuple(i // 2 for i in range(2 * len(own.layers))), learned=_always_first(own.learned), text=source,
        names=_names(own, kind),
    )  # fmt: skip


def _source(config: Config, kind: str) -> TextEncoder:
    """The encoder: its learned tables, the first row of those of token types, and their norm."""
    result = encoder(
        {**config, "is_decoder": False}, None, prefix="", first=first_position(config) if kind in ROBERTA else 0
    )  # fmt: skip
    learned = _always_first(result.learned)
    if kind == "bert-generation":
        learned = tuple(each for each in learned if each.by == "position")
    return TextEncoder(
        sources=next(each.positions for each in learned if each.by == "position"), hidden=result.hidden, layers=result.layers,
        embed=result.embed, vocab=result.vocab, learned=learned, embed_norm=result.embed_norm, layer=result.layer,
    )  # fmt: skip


def _always_first(learned: tuple[LearnedEmbedding, ...]) -> tuple[LearnedEmbedding, ...]:
    return tuple(replace(each, by="first") if each.by == "type" else each for each in learned)


def _split(config: Config, layer: Layer, sources: int) -> Iterator[Layer]:
    """The two declared layers of one of the files."""
    heads, hidden = layer.mixer, hidden_size(config)
    assert isinstance(heads, Attention)
    yield Layer(heads, None, Norms(mixer_sum=layer.norms.mixer_sum))
    cross = CrossAttention(
        heads=heads.heads, head_dim=heads.head_dim, sources=sources, varies=True, width=hidden, bias=True, key_bias=True,
        name="crossattention", parts=("self.query", "self.key", "self.value"), out="output.dense",
    )  # fmt: skip
    norm = LayerNorm("crossattention.output.LayerNorm", hidden, real(config, "layer_norm_eps", default=1e-12))
    yield Layer(cross, layer.ffn, Norms(mixer_sum=norm, ffn_sum=layer.norms.ffn_sum))


def _names(own: ModelSpec, kind: str) -> Names:
    """Tensors of the decoder as they are known here: without their prefix. Those of the encoder keep theirs."""
    inside = "roberta" if kind in ROBERTA else "bert"
    kept = tuple((f"decoder.{old}", new) for old, new in own.names.replace)
    unread = ("pooler.", "embeddings.position_ids")
    skip = (*(name for name in own.names.skip if "crossattention" not in name), *(f"encoder.{name}" for name in unread))
    heads = tuple(f"decoder.{name}" for name in own.names.skip if name.endswith(".bias"))
    return Names(replace=(*kept, (f"decoder.{inside}.", ""), ("decoder.", "")), skip=(*skip, *heads))
