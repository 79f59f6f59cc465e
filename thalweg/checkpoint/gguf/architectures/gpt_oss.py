"""gpt-oss: experts with biases, in MXFP4 as published, a window on every other layer, and attention sinks."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import (
    EXPERTS,
    LAYER,
    Architecture,
    has,
    head_width,
    layer_types,
    mixture,
    rename,
    rope,
)
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    """YaRN's bounds are not rounded, which files do not record."""
    positions = rope(keys, files, head_width(keys))
    if positions["rope_type"] == "yarn":
        positions["truncate"] = False
    return {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_act": "silu",
        **mixture(keys, "num_local_experts", "intermediate_size"),
        "sliding_window": keys.integer("attention.sliding_window", low=1), "layer_types": layer_types(keys, 2),
        "attention_bias": has(files, "attn_q.bias", "attn_qkv.bias"), "rope_parameters": positions,
    }  # fmt: skip


GPT_OSS = Architecture(
    config=_config,
    layer={**LAYER, "post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.router"},
    experts=EXPERTS,
    dense=("ffn_gate_inp",),
    special={"attn_sinks.weight": rename("self_attn.sinks")},
)
