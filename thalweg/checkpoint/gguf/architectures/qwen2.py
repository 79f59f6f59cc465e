"""Qwen2, Qwen2.5, QwQ."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    head_dim = keys.integer("embedding_length", low=1) // keys.integer("attention.head_count", low=1)
    return {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "use_sliding_window": False,
        "rope_parameters": rope(keys, files, keys.integer("attention.key_length", default=head_dim)),
    }  # fmt: skip


QWEN2 = Architecture(config=_config, layer=LAYER)
