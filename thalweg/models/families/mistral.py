"""Mistral 7B and its derivatives: Llama with a sliding window (null = none; absent = 4096, the family's default) on every
layer, or on those of `layer_types`."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families.common import layer_count, layer_types, llama_decoder, mlp, sliding_window
from thalweg.models.spec import ModelSpec


def mistral(config: Config) -> ModelSpec:
    types = layer_types(config, ["sliding_attention"] * layer_count(config))
    window = sliding_window(config)
    return llama_decoder(config, [window if t == "sliding_attention" else 0 for t in types], mlp(config))
