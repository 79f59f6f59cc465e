"""DPR: BERT encoders of questions and of passages. Vectors of their first tokens are compared by the dot product."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.bert import encoder
from thalweg.models.families.common import hidden_size, pooling
from thalweg.models.spec import ModelSpec
from thalweg.models.tail import Dense


def dpr_question(config: Config) -> ModelSpec:
    return _encoder(config, "question_encoder.")


def dpr_context(config: Config) -> ModelSpec:
    return _encoder(config, "ctx_encoder.")


def _encoder(config: Config, root: str) -> ModelSpec:
    hidden, size = hidden_size(config), integer(config, "projection_dim", low=0, default=0)
    tail = pooling(config, default="cls")
    if size:
        tail = replace(tail, dense=(Dense("", hidden, size, act="none", name="encode_proj"), *tail.dense))
    if not isinstance(config.get("pooling"), dict):
        tail = replace(tail, activate=False)
    spec = encoder(config, tail, prefix=f"{root}bert_model.", skip=("pooler.",))
    return replace(spec, names=replace(spec.names, replace=(*spec.names.replace, (f"{root}encode_proj", "encode_proj"))))
