"""HunYuan, dense: QK-norm after RoPE. The converter computed the RoPE base from the configuration's alpha."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, Architecture, has, head_width, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys

_NORMS = {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    return {
        "architectures": ["HunYuanDenseV1ForCausalLM"], "model_type": "hunyuan_v1_dense", "hidden_act": "silu",
        "attention_bias": has(files, "attn_q.bias"), "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


HUNYUAN_DENSE = Architecture(config=_config, layer={**LAYER, **_NORMS})
