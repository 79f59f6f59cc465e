"""RoBERTa encoders, and those with its layers: XLM-RoBERTa, CamemBERT, data2vec for text. BERT's layers with position ids
offset by the padding token's id. E5, BGE-M3 and most rerankers of many languages are of this kind."""

from __future__ import annotations

from functools import partial

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import CheckpointError
from thalweg.models.families.bert import encoder
from thalweg.models.families.common import classes, pooling, token_classes, word_weights
from thalweg.models.spec import ModelSpec
from thalweg.models.tail import Pooling


def roberta(config: Config, prefix: str = "roberta.") -> ModelSpec:
    tail = pooling(config, default="cls", lexical=partial(_words, config))
    unused = ("lm_head.",) if tail.lexical is None else ("lm_head.decoder.",)
    return encoder(config, tail, prefix=prefix, skip=("pooler.", *unused), first=first_position(config))


def roberta_classifier(config: Config, prefix: str = "roberta.") -> ModelSpec:
    tail = classes(config, dense="classifier.dense", out="classifier.out_proj")
    return encoder(config, tail, prefix=prefix, skip=("pooler.",), first=first_position(config))


def roberta_of_tokens(config: Config, prefix: str = "roberta.") -> ModelSpec:
    return encoder(config, token_classes(config), prefix=prefix, skip=("pooler.",), first=first_position(config))


def data2vec_text(config: Config) -> ModelSpec:
    return roberta(config, "data2vec_text.")


def data2vec_text_classifier(config: Config) -> ModelSpec:
    return roberta_classifier(config, "data2vec_text.")


def data2vec_text_of_tokens(config: Config) -> ModelSpec:
    return roberta_of_tokens(config, "data2vec_text.")


def first_position(config: Config) -> int:
    """The row of position 0."""
    first = integer(config, "pad_token_id", default=1) + 1
    rows = integer(config, "max_position_embeddings", high=1 << 24)
    if first >= rows:
        raise CheckpointError(f"config.json: max_position_embeddings: {rows} rows leave none beyond pad_token_id, {first - 1}")
    return first


def _words(config: Config) -> Pooling:
    eps = real(config, "layer_norm_eps", default=1e-12)
    return word_weights(config, dense="lm_head.dense", norm="lm_head.layer_norm", bias="lm_head.bias", act="gelu", eps=eps)
