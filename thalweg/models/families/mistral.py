"""Mistral 7B and its kin: Llama with a sliding window on every layer (null = none; absent = 4096, the family's default)."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families.common import layer_count, mlp, sliding_window, windowed
from thalweg.models.spec import ModelSpec


def mistral(config: Config) -> ModelSpec:
    return windowed(config, (sliding_window(config),) * layer_count(config), mlp(config))
