"""Jina Embeddings v5: Qwen 3 or EuroBERT with one low-rank adapter per task, selected by `jina_task`."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag
from thalweg.models.families.eurobert import eurobert
from thalweg.models.families.qwen3 import qwen3
from thalweg.models.families.tails import embedder
from thalweg.models.spec import Adapter, ModelSpec


def jina_v5(config: Config) -> ModelSpec:
    spec, section = qwen3(config), config.get("adapter")
    if not flag(config, "is_decoder", True):
        spec = replace(eurobert(config), pooling=None)
    spec = embedder(spec, config)
    return spec if not isinstance(section, dict) else replace(spec, adapter=Adapter(section["folder"], section["scale"]))
