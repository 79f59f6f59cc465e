"""InternVL (3 and 3.5, in transformers' format): Qwen or gpt-oss behind an encoder of tiles."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.internvl import internvl as tower
from thalweg.models.spec import ModelSpec


def internvl(config: Config) -> ModelSpec:
    return seeing(of_kind({"tie_word_embeddings": True, **config}, "qwen2"), config, tower)
