"""RoBERTa and XLM-RoBERTa encoders: BERT's layers with position ids offset by the padding token's id. E5, BGE-M3 and most
rerankers of many languages are of this kind."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.bert import encoder
from thalweg.models.families.common import classes, pooling, token_classes
from thalweg.models.spec import ModelSpec


def roberta(config: Config) -> ModelSpec:
    skip = ("pooler.", "lm_head.")
    return encoder(config, pooling(config, default="cls"), prefix="roberta.", skip=skip, first=_first(config))


def roberta_classifier(config: Config) -> ModelSpec:
    tail = classes(config, dense="classifier.dense", out="classifier.out_proj")
    return encoder(config, tail, prefix="roberta.", skip=("pooler.",), first=_first(config))


def roberta_of_tokens(config: Config) -> ModelSpec:
    return encoder(config, token_classes(config), prefix="roberta.", skip=("pooler.",), first=_first(config))


def _first(config: Config) -> int:
    first = integer(config, "pad_token_id", default=1) + 1
    rows = integer(config, "max_position_embeddings", high=1 << 24)
    if first >= rows:
        raise CheckpointError(f"config.json: max_position_embeddings: {rows} rows leave none beyond pad_token_id, {first - 1}")
    return first
