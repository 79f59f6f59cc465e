"""OLMo 2 and 3: a norm after each part. OLMo 3 has windowed layers, with unscaled positions."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import (
    FULL,
    HEAD_NORMS,
    LAYER,
    WINDOWED,
    Architecture,
    has,
    head_width,
    layer_types,
    rope,
)
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys

POST_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    positions = rope(keys, files, head_width(keys))
    settings = {
        "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "hidden_act": "silu", "rope_parameters": positions,
        "attention_bias": has(files, "attn_q.bias"),
    }  # fmt: skip
    window = keys.integer("attention.sliding_window", default=0)
    if not window:
        return settings
    local = keys.real("rope.freq_base_swa", default=positions["rope_theta"])
    return settings | {
        "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "sliding_window": window,
        "layer_types": layer_types(keys, 4),
        "rope_parameters": {FULL: positions, WINDOWED: {"rope_type": "default", "rope_theta": local}},
    }  # fmt: skip


OLMO2 = Architecture(config=_config, layer={**LAYER, **HEAD_NORMS, **POST_NORMS})
