"""ERNIE 2 and 3 encoders: BERT with a task embedding where the checkpoint has one."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families.bert import encoder
from thalweg.models.families.common import classes, pooling, token_classes
from thalweg.models.spec import ModelSpec


def ernie(config: Config) -> ModelSpec:
    return encoder(config, pooling(config, default="cls"), prefix="ernie.", skip=("pooler.", "cls."))


def ernie_classifier(config: Config) -> ModelSpec:
    return encoder(config, classes(config, dense="pooler.dense"), prefix="ernie.")


def ernie_of_tokens(config: Config) -> ModelSpec:
    return encoder(config, token_classes(config), prefix="ernie.", skip=("pooler.",))
