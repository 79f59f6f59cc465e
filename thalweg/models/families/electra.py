"""ELECTRA encoder: BERT without a pooler. Small ones have embeddings narrower than the layers."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.bert import encoder, project_embeddings
from thalweg.models.families.common import classes, pooling, token_classes
from thalweg.models.spec import ModelSpec


def electra(config: Config) -> ModelSpec:
    skip = ("discriminator_predictions.", "generator_")
    return _project(config, encoder(config, pooling(config, default="cls"), prefix="electra.", skip=skip))


def electra_classifier(config: Config) -> ModelSpec:
    tail = classes(config, dense="classifier.dense", act="gelu", out="classifier.out_proj")
    return _project(config, encoder(config, tail, prefix="electra."))


def electra_of_tokens(config: Config) -> ModelSpec:
    return _project(config, encoder(config, token_classes(config), prefix="electra."))


def _project(config: Config, spec: ModelSpec) -> ModelSpec:
    width = integer(config, "embedding_size", default=128)
    return spec if width == spec.hidden else project_embeddings(config, spec, width, "embeddings_project")
