"""GLM-4 (0414): gate and up in one tensor, positions on half of each head."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, has, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.errors import UnsupportedModelError


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    sections = keys.numbers("rope.dimension_sections", "iu")
    if sections is not None and sections.any():
        raise UnsupportedModelError(f"{files.path}: {keys.prefix}rope.dimension_sections: this version reads text-only GLM-4")
    hidden, heads = keys.integer("embedding_length", low=1), keys.integer("attention.head_count", low=1)
    return {
        "architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "hidden_act": "silu",
        "attention_bias": has(files, "attn_q.bias", "attn_qkv.bias"),
        "rope_parameters": rope(keys, files, keys.integer("attention.key_length", default=hidden // heads, low=1)),
    }  # fmt: skip


GLM4 = Architecture(
    config=_config,
    layer={
        **{k: v for k, v in LAYER.items() if k != "ffn_gate"},
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
        "ffn_up": "mlp.gate_up_proj",
    },
)
