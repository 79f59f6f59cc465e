"""OLMo 1: layer norms without weights and biases."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, head_width, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["OlmoForCausalLM"], "model_type": "olmo", "hidden_act": "silu",
        "clip_qkv": keys.real("attention.clamp_kqv", default=0.0) or None,
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


OLMO = Architecture(config=_config, layer=LAYER, layer_norm=True, turned=True)
