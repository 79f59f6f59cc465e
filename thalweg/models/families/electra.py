"""ELECTRA encoder: BERT without a pooler, embeddings as wide as the layers."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.bert import encoder
from thalweg.models.families.common import classes, pooling, token_classes
from thalweg.models.spec import ModelSpec


def electra(config: Config) -> ModelSpec:
    skip = ("discriminator_predictions.", "generator_", "embeddings_project.")
    return _as_wide(config, encoder(config, pooling(config, default="cls"), prefix="electra.", skip=skip))


def electra_classifier(config: Config) -> ModelSpec:
    tail = classes(config, dense="classifier.dense", act="gelu", out="classifier.out_proj")
    return _as_wide(config, encoder(config, tail, prefix="electra."))


def electra_of_tokens(config: Config) -> ModelSpec:
    return _as_wide(config, encoder(config, token_classes(config), prefix="electra."))


def _as_wide(config: Config, spec: ModelSpec) -> ModelSpec:
    size = integer(config, "embedding_size", default=128)
    if size != spec.hidden:
        raise UnsupportedModelError(
            f"config.json: embedding_size: {size}: this version serves ELECTRA where it is hidden_size ({spec.hidden})"
        )
    return spec
