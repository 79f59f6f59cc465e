"""Qwen3, dense."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import HEAD_NORMS, LAYER, Architecture, has, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys

LAYER_QWEN3 = {**LAYER, **HEAD_NORMS}


def config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    head_dim = keys.integer("embedding_length", low=1) // keys.integer("attention.head_count", low=1)
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "use_sliding_window": False,
        "attention_bias": has(files, "attn_q.bias", "attn_qkv.bias"),
        "rope_parameters": rope(keys, files, keys.integer("attention.key_length", default=head_dim)),
    }  # fmt: skip


QWEN3 = Architecture(config=config, layer=LAYER_QWEN3)
