"""XLM-RoBERTa XL and XXL encoders: RoBERTa with norms before its parts."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families.bert import norm_before
from thalweg.models.families.roberta import roberta, roberta_classifier, roberta_of_tokens
from thalweg.models.spec import ModelSpec


def xlm_roberta_xl(config: Config) -> ModelSpec:
    return _norm_before(config, roberta(config))


def xlm_roberta_xl_classifier(config: Config) -> ModelSpec:
    return _norm_before(config, roberta_classifier(config))


def xlm_roberta_xl_of_tokens(config: Config) -> ModelSpec:
    return _norm_before(config, roberta_of_tokens(config))


def _norm_before(config: Config, spec: ModelSpec) -> ModelSpec:
    return norm_before(config, spec, "attention.self_attn_layer_norm", "LayerNorm", "encoder.LayerNorm")
