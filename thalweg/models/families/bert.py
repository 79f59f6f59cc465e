"""BERT encoder: learned positions, post-norm layers, an optional pooler. Sentence encoders such as all-MiniLM, BGE and E5 are
of this kind, and classifiers and rerankers with a head on top. In an encoder the pooler that was trained to guess the next
sentence is left out."""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import act, both_ways, classes, hidden_size, layer_count, pooling, token_classes
from thalweg.models.spec import Layer, LayerNorm, LearnedEmbedding, ModelSpec, Names, Norms, UngatedMLP
from thalweg.models.tail import ACTS, Lexical, Pooling


def bert(config: Config) -> ModelSpec:
    return encoder(config, pooling(config, default="cls"), prefix="bert.", skip=("pooler.", "cls."))


def bert_classifier(config: Config) -> ModelSpec:
    return encoder(config, classes(config, dense="pooler.dense"), prefix="bert.")


def bert_of_tokens(config: Config) -> ModelSpec:
    return encoder(config, token_classes(config), prefix="bert.", skip=("pooler.",))


def bert_splade(config: Config) -> ModelSpec:
    """SPLADE: a weight for each word of the vocabulary, made by the head that guesses words. They are not normalised."""
    name, head = act(config, default="gelu"), "cls.predictions."
    if name not in ACTS:
        raise UnsupportedModelError(
            f"config.json: hidden_act: {name}: this version's head that guesses words has {', '.join(ACTS)}"
        )
    lexical = Lexical(
        dense=f"{head}transform.dense", norm=f"{head}transform.LayerNorm", bias=f"{head}bias", act=name, eps=_eps(config),
        table="embeddings.word_embeddings", vocab=integer(config, "vocab_size"),
    )  # fmt: skip
    tail = Pooling("max", activate=False, lexical=lexical)
    return encoder(config, tail, prefix="bert.", skip=("pooler.", "cls.seq_relationship.", f"{head}decoder."))


def encoder(config: Config, tail: Pooling, *, prefix: str, skip: Sequence[str] = (), first: int = 0) -> ModelSpec:
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
