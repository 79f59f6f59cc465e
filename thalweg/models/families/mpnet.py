"""MPNet encoder: BERT's layers with a relative position bias. all-mpnet and multi-qa-mpnet are of this kind."""

from __future__ import annotations

from functools import partial

from thalweg.checkpoint.config import Config, integer, real
from thalweg.models.families.common import act, both_ways, classes, hidden_size, layer_count, pooling, ungated_mlp, word_weights
from thalweg.models.spec import Layer, LayerNorm, LearnedEmbedding, ModelSpec, Names, Norms, RelativeBias
from thalweg.models.tail import Pooling

FIRST = 2
"""The row of position 0, whatever the padding token is."""


def mpnet(config: Config) -> ModelSpec:
    tail = pooling(config, default="cls", lexical=partial(_words, config))
    unused = "lm_head." if tail.lexical is None else "lm_head.decoder."
    return _encoder(config, tail, skip=("pooler.", "mpnet.pooler.", unused))


def _words(config: Config) -> Pooling:
    eps = real(config, "layer_norm_eps", default=1e-12)
    return word_weights(config, dense="lm_head.dense", norm="lm_head.layer_norm", bias="lm_head.bias", act="gelu", eps=eps)


def mpnet_classifier(config: Config) -> ModelSpec:
    return _encoder(config, classes(config, dense="classifier.dense", out="classifier.out_proj"))


def _encoder(config: Config, tail: Pooling, skip: tuple[str, ...] = ()) -> ModelSpec:
    hidden, eps = hidden_size(config), real(config, "layer_norm_eps", default=1e-12)
    buckets = integer(config, "relative_attention_num_buckets", low=4, high=1 << 10, default=32)
    layer = Layer(
        both_ways(
            config, bias=True, out_bias=True, name="attention.attn", parts=("q", "k", "v"), out="o",
            relative=RelativeBias("encoder.relative_attention_bias.weight", buckets),
        ),
        ungated_mlp(config, name="", up="intermediate.dense", down="output.dense", bias=True, act=act(config, default="gelu")),
        Norms(
            mixer_sum=LayerNorm("attention.LayerNorm", hidden, eps), ffn_sum=LayerNorm("output.LayerNorm", hidden, eps)
        ),
    )  # fmt: skip
    positions = integer(config, "max_position_embeddings", low=FIRST + 1, high=1 << 24, default=512)
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=(layer,) * layer_count(config), norm=None,
        learned=(LearnedEmbedding("embeddings.position_embeddings", positions, first=FIRST),),
        embed_norm=LayerNorm("embeddings.LayerNorm", hidden, eps), pooling=tail,
        root="", layer="encoder.layer.{}.", embed="embeddings.word_embeddings",
        names=Names(replace=(("mpnet.", ""),), skip=("embeddings.position_ids", "mpnet.embeddings.position_ids", *skip)),
    )  # fmt: skip
