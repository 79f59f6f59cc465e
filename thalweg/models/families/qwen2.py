"""Qwen2, Qwen2.5, QwQ: biases on q, k and v only; sliding windows on some layers if the configuration turns them on."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families.common import layer_windows, mlp, windowed
from thalweg.models.spec import ModelSpec


def qwen2(config: Config) -> ModelSpec:
    return windowed(config, layer_windows(config), mlp(config), bias=True)
