"""Mistral Small 3.1 and later, and Ministral 3, text: Llama's layers, with queries scaled by position where files have it."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, head_width, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    """The scaling of queries is relative to the original training length."""
    positions = rope(keys, files, head_width(keys))
    if growth := keys.real("attention.temperature_scale", default=0.0):
        trained = keys.integer("rope.scaling.original_context_length", default=keys.integer("context_length", low=1), low=1)
        positions |= {"llama_4_scaling_beta": growth, "original_max_position_embeddings": trained}
    return {
        "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "hidden_act": "silu",
        "sliding_window": keys.integer("attention.sliding_window", default=0) or None, "rope_parameters": positions,
    }  # fmt: skip


MISTRAL3 = Architecture(config=_config, layer=LAYER, turned=True)
