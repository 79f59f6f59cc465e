"""Gemma 3, text. Its files leave out what llama.cpp knows by itself: the base of local positions, which layers see everything,
and the scale of queries, which of the largest alone (62 layers) is not that of a head's width."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.checkpoint.gguf.architectures.common import HEAD_NORMS, LAYER, Architecture, layers, rope
from thalweg.checkpoint.gguf.files import Files
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.errors import CheckpointError

EVERY = 6
"""Of so many layers the last sees everything."""
LARGEST = 62
_WINDOWED, _FULL = "sliding_attention", "full_attention"


def _config(keys: Keys, files: Files) -> dict[str, Any]:
    hidden, heads = keys.integer("embedding_length", low=1), keys.integer("attention.head_count", low=1)
    head_dim = keys.integer("attention.key_length", default=hidden // heads, low=1)
    window = keys.integer("attention.sliding_window", default=0)
    local = {"rope_type": "default", "rope_theta": keys.real("rope.freq_base_swa", default=10_000.0)}
    return {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": hidden // heads if layers(keys) == LARGEST else head_dim,
        "sliding_window": window or None, "layer_types": _types(keys, window, layers(keys)),
        "rope_parameters": {_FULL: rope(keys, files, head_dim), _WINDOWED: local},
        "final_logit_softcapping": keys.real("final_logit_softcapping", default=0.0) or None,
    }  # fmt: skip


def _types(keys: Keys, window: int, count: int) -> list[str]:
    name = "attention.sliding_window_pattern"
    if not window:
        return [_FULL] * count
    said = keys.metadata.get(keys.prefix + name)
    if isinstance(said, np.ndarray):
        if len(said) < count:
            raise CheckpointError(f"{keys.path}: {keys.prefix}{name}: says nothing of some of the {count} layers")
        return [_WINDOWED if windowed else _FULL for windowed in said[:count]]
    every = keys.integer(name, default=EVERY, low=1)
    return [_FULL if (i + 1) % every == 0 else _WINDOWED for i in range(count)]


GEMMA3 = Architecture(
    config=_config,
    layer={
        **LAYER,
        **HEAD_NORMS,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    raised=True,
)
