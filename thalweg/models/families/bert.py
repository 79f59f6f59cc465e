"""BERT encoder: learned positions, post-norm layers, an optional pooler. Sentence encoders such as all-MiniLM, BGE and E5 are
of this kind, and classifiers and rerankers with a head on top. In an encoder the pooler that was trained to guess the next
sentence is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import (
    act,
    both_ways,
    classes,
    hidden_size,
    layer_count,
    pooling,
    token_classes,
    word_weights,
)
from thalweg.models.spec import EmbedProjection, Layer, LayerNorm, LearnedEmbedding, ModelSpec, Names, Norms, UngatedMLP
from thalweg.models.tail import Pooling

HEAD = "cls.predictions."
"""The head that guesses words."""


def bert(config: Config) -> ModelSpec:
    return _encoder(config, pooling(config, default="cls", lexical=partial(_words, config)))


def contriever(config: Config) -> ModelSpec:
    """BERT with mean pooling. Its vectors are compared by their dot product, so they are not normalised."""
    tail = pooling(config, default="mean")
    return _encoder(config, tail if isinstance(config.get("pooling"), dict) else replace(tail, activate=False))


def bert_classifier(config: Config) -> ModelSpec:
    return encoder(config, classes(config, dense="pooler.dense"), prefix="bert.")


def bert_of_tokens(config: Config) -> ModelSpec:
    return encoder(config, token_classes(config), prefix="bert.", skip=("pooler.",))


def bert_splade(config: Config) -> ModelSpec:
    """SPLADE: a weight for each word of the vocabulary, made by the head that guesses words. They are not normalised."""
    return _encoder(config, _words(config))


def _encoder(config: Config, tail: Pooling) -> ModelSpec:
    unused = ("cls.",) if tail.lexical is None else ("cls.seq_relationship.", f"{HEAD}decoder.")
    return encoder(config, tail, prefix="bert.", skip=("pooler.", *unused))


def _words(config: Config) -> Pooling:
    return word_weights(
        config, dense=f"{HEAD}transform.dense", norm=f"{HEAD}transform.LayerNorm", bias=f"{HEAD}bias",
        act=act(config, default="gelu"), eps=_eps(config),
    )  # fmt: skip


def encoder(config: Config, tail: Pooling | None, *, prefix: str, skip: Sequence[str] = (), first: int = 0) -> ModelSpec:
    """prefix: of the encoder's tensors where a checkpoint has more around it. skip: tensors of another tail. first: the row
    of position 0."""
    positions = text(config, "position_embedding_type", "absolute")
    if positions != "absolute" or config.get("is_decoder") or config.get("add_cross_attention"):
        raise UnsupportedModelError("config.json: this version serves BERT as an encoder with absolute positions")
    hidden, eps = hidden_size(config), _eps(config)
    layer = Layer(
        both_ways(
            config, bias=True, out_bias=True, name="attention", parts=("self.query", "self.key", "self.value"),
            out="output.dense",
        ),
        UngatedMLP(
            inner=integer(config, "intermediate_size"), act=act(config, default="gelu"), bias=True, name="",
            up="intermediate.dense", down="output.dense",
        ),
        Norms(
            mixer_sum=LayerNorm("attention.output.LayerNorm", hidden, eps), ffn_sum=LayerNorm("output.LayerNorm", hidden, eps)
        ),
    )  # fmt: skip
    tasks = integer(config, "task_type_vocab_size", default=3) if flag(config, "use_task_id", False) else 0  # ERNIE
    nothing = ("embeddings.position_ids", *skip)
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=(layer,) * layer_count(config), norm=None,
        learned=(
            LearnedEmbedding("embeddings.position_embeddings", integer(config, "max_position_embeddings", high=1 << 24),
            first=first),
            LearnedEmbedding("embeddings.token_type_embeddings", integer(config, "type_vocab_size", default=2), by="type"),
            *((LearnedEmbedding("embeddings.task_type_embeddings", tasks, by="first"),) if tasks else ()),
        ),
        embed_norm=LayerNorm("embeddings.LayerNorm", hidden, eps), pooling=tail,
        root="", layer="encoder.layer.{}.", embed="embeddings.word_embeddings",
        names=Names(replace=((prefix, ""),), skip=(*nothing, *(prefix + name for name in nothing))),
    )  # fmt: skip


def _eps(config: Config) -> float:
    return real(config, "layer_norm_eps", default=1e-12)


def project_embeddings(config: Config, spec: ModelSpec, width: int, name: str) -> ModelSpec:
    """The same encoder with embeddings of another width. name: of the linear layer after their norm."""
    return replace(
        spec, embed_norm=LayerNorm("embeddings.LayerNorm", width, _eps(config)), embed_projection=EmbedProjection(name, width)
    )


def norm_before(config: Config, spec: ModelSpec, mixer: str, ffn: str, last: str) -> ModelSpec:
    """The same encoder with norms before its parts: `mixer`, `ffn`, and `last` after all layers. None is of embeddings."""
    hidden, eps = hidden_size(config), _eps(config)
    norms = Norms(mixer=LayerNorm(mixer, hidden, eps), ffn=LayerNorm(ffn, hidden, eps))
    layers = tuple(replace(layer, norms=norms) for layer in spec.layers)
    return replace(spec, layers=layers, embed_norm=None, norm=LayerNorm(last, hidden, eps))
