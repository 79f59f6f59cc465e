"""Mistral 7B and its kin: Llama with a sliding window on every layer (null = none; absent = 4096, the family's default)."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer
from thalweg.models.settings import Settings, settings, sliding_window


def mistral(config: Config) -> Settings:
    layers = integer(config, "num_hidden_layers", high=10_000)
    return settings(config, windows=(sliding_window(config),) * layers)
