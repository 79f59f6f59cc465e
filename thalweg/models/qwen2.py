"""Qwen2, Qwen2.5, QwQ: biases on q, k and v only; sliding windows on some layers if the configuration turns them on."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.settings import Settings, layer_windows, settings


def qwen2(config: Config) -> Settings:
    return settings(config, windows=layer_windows(config), qkv_bias=True)
