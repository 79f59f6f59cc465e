"""Megatron-BERT encoder: BERT with norms before its parts."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families.bert import encoder, norm_before
from thalweg.models.families.common import classes, pooling, token_classes
from thalweg.models.spec import ModelSpec
from thalweg.models.tail import Pooling


def megatron_bert(config: Config) -> ModelSpec:
    return _encoder(config, pooling(config, default="cls"), ("pooler.", "cls."))


def megatron_bert_classifier(config: Config) -> ModelSpec:
    return _encoder(config, classes(config, dense="pooler.dense"))


def megatron_bert_of_tokens(config: Config) -> ModelSpec:
    return _encoder(config, token_classes(config), ("pooler.",))


def _encoder(config: Config, tail: Pooling, skip: tuple[str, ...] = ()) -> ModelSpec:
    spec = encoder(config, tail, prefix="bert.", skip=skip)
    return norm_before(config, spec, "attention.ln", "ln", "encoder.ln")
