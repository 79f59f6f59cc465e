"""RemBERT encoder: BERT with narrow embeddings, and a linear layer from them to the layers."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.bert import encoder, project_embeddings
from thalweg.models.families.common import classes, pooling, token_classes
from thalweg.models.spec import ModelSpec
from thalweg.models.tail import Pooling


def rembert(config: Config) -> ModelSpec:
    return _encoder(config, pooling(config, default="cls"), ("pooler.", "cls."))


def rembert_classifier(config: Config) -> ModelSpec:
    return _encoder(config, classes(config, dense="pooler.dense"))


def rembert_of_tokens(config: Config) -> ModelSpec:
    return _encoder(config, token_classes(config), ("pooler.",))


def _encoder(config: Config, tail: Pooling, skip: tuple[str, ...] = ()) -> ModelSpec:
    width = integer(config, "input_embedding_size", default=256)
    spec = encoder(config, tail, prefix="rembert.", skip=skip)
    return project_embeddings(config, spec, width, "encoder.embedding_hidden_mapping_in")
