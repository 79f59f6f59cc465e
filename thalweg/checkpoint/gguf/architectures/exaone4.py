"""EXAONE 4: a norm after each part. The larger model (64 layers) has windows on some layers, and NoPE on the others."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import (
    HEAD_NORMS,
    LAYER,
    WINDOWED,
    Architecture,
    head_width,
    layer_types,
    layers,
    rope,
)
from thalweg.checkpoint.gguf.architectures.olmo2 import POST_NORMS
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys

LARGER, WINDOW = 64, 4096


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    count = layers(keys)
    window = keys.integer("attention.sliding_window", default=WINDOW if count == LARGER else 0)
    types = layer_types(keys, 4) if window else ["full_attention"] * count
    return {
        "architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "hidden_act": "silu",
        "sliding_window": window if WINDOWED in types else None, "layer_types": types,
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


EXAONE4 = Architecture(config=_config, layer={**LAYER, **HEAD_NORMS, **POST_NORMS})
