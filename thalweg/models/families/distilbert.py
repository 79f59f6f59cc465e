"""DistilBERT encoder: BERT's layers under other names, without token types."""

from __future__ import annotations

from functools import partial

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.common import (
    act,
    both_ways,
    classes,
    hidden_size,
    layer_count,
    pooling,
    token_classes,
    ungated_mlp,
    word_weights,
)
from thalweg.models.spec import Layer, LayerNorm, LearnedEmbedding, ModelSpec, Names, Norms
from thalweg.models.tail import Pooling

EPS = 1e-12


def distilbert(config: Config) -> ModelSpec:
    tail = pooling(config, default="cls", lexical=partial(_words, config))
    return _encoder(config, tail, skip=("vocab_",) if tail.lexical is None else ("vocab_projector.weight",))


def _words(config: Config) -> Pooling:
    gate = act(config, "activation", default="gelu")
    return word_weights(
        config, dense="vocab_transform", norm="vocab_layer_norm", bias="vocab_projector.bias", act=gate, eps=EPS
    )


def distilbert_classifier(config: Config) -> ModelSpec:
    return _encoder(config, classes(config, dense="pre_classifier", act="relu"))


def distilbert_of_tokens(config: Config) -> ModelSpec:
    return _encoder(config, token_classes(config))


def _encoder(config: Config, tail: Pooling, skip: tuple[str, ...] = ()) -> ModelSpec:
    hidden = hidden_size(config)
    layer = Layer(
        both_ways(
            config, bias=True, out_bias=True, name="attention", parts=("q_lin", "k_lin", "v_lin"), out="out_lin",
        ),
        ungated_mlp(config, name="ffn", up="lin1", down="lin2", bias=True, act=act(config, default="gelu")),
        Norms(mixer_sum=LayerNorm("sa_layer_norm", hidden, EPS), ffn_sum=LayerNorm("output_layer_norm", hidden, EPS)),
    )  # fmt: skip
    positions = integer(config, "max_position_embeddings", high=1 << 24, default=512)
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=(layer,) * layer_count(config), norm=None,
        learned=(LearnedEmbedding("embeddings.position_embeddings", positions),),
        embed_norm=LayerNorm("embeddings.LayerNorm", hidden, EPS), pooling=tail,
        root="", layer="transformer.layer.{}.", embed="embeddings.word_embeddings",
        names=Names(replace=(("distilbert.", ""),), skip=skip),
    )  # fmt: skip
