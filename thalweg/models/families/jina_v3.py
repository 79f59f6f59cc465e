"""Jina Embeddings v3 encoder without its adapters: XLM-RoBERTa with RoPE."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families.common import act, classes, pooling, ungated_mlp
from thalweg.models.families.nomic_bert import rotary_encoder
from thalweg.models.spec import ModelSpec, Names
from thalweg.models.tail import Pooling


def jina_v3(config: Config) -> ModelSpec:
    return jina_roberta(config, pooling(config, default="mean"), skip=("pooler.", "lm_head."))


def jina_v3_classifier(config: Config) -> ModelSpec:
    return jina_roberta(config, classes(config, dense="classifier.dense", out="classifier.out_proj"))


def jina_roberta(config: Config, tail: Pooling, skip: tuple[str, ...] = ()) -> ModelSpec:
    inner = ungated_mlp(config, bias=True, act=act(config, default="gelu"))
    parts = ("mixer", "Wqkv", "out_proj", "norm1", "norm2")
    return rotary_encoder(
        config, tail, inner, parts, base=20_000.0, bias=True, types=1, layer="encoder.layers.{}.", norm="emb_ln",
        names=Names(replace=(("roberta.", ""),), skip=(*skip, *(f"roberta.{name}" for name in skip))),
    )  # fmt: skip
