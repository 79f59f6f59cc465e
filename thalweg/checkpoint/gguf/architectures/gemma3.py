"""Gemma 3, text. Its files omit constants of llama.cpp: the RoPE base of windowed layers, the layers with full attention, and
the scale of queries. Only in the largest (62 layers) does that scale differ from the head width's."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import (
    AROUND,
    FULL,
    HEAD_NORMS,
    LAYER,
    WINDOWED,
    Architecture,
    layer_types,
    layers,
    rope,
)
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys

EVERY = 6
"""Period of layers. The last layer of each has full attention."""
LARGEST = 62


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    hidden, heads = keys.integer("embedding_length", low=1), keys.integer("attention.head_count", low=1)
    head_dim = keys.integer("attention.key_length", default=hidden // heads, low=1)
    window = keys.integer("attention.sliding_window", default=0)
    local = {"rope_type": "default", "rope_theta": keys.real("rope.freq_base_swa", default=10_000.0)}
    return {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": hidden // heads if layers(keys) == LARGEST else head_dim,
        "sliding_window": window or None, "layer_types": layer_types(keys, EVERY) if window else [FULL] * layers(keys),
        "rope_parameters": {FULL: rope(keys, files, head_dim), WINDOWED: local},
        "final_logit_softcapping": keys.real("final_logit_softcapping", default=0.0) or None,
    }  # fmt: skip


GEMMA3 = Architecture(
    config=_config,
    layer={**LAYER, **HEAD_NORMS, **AROUND},
    raised=True,
)
