"""MiniCPM3: latent attention. Files do not have the scales of embeddings, residuals and logits, which the only model shares
with the first MiniCPM."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import Architecture, rope
from thalweg.checkpoint.gguf.architectures.deepseek2 import DEEPSEEK2
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    turned = keys.integer("rope.dimension_count", low=2, high=1 << 16)
    heads = keys.integer("attention.head_count", low=1)
    return {
        "architectures": ["MiniCPM3ForCausalLM"], "model_type": "minicpm3", "hidden_act": "silu", "head_dim": turned,
        "num_key_value_heads": heads, "rope_parameters": rope(keys, files, turned),
        "q_lora_rank": keys.integer("attention.q_lora_rank", low=1),
        "kv_lora_rank": keys.integer("attention.kv_lora_rank", low=1), "qk_rope_head_dim": turned,
        "qk_nope_head_dim": keys.integer("attention.key_length", low=turned + 1) - turned,
        "v_head_dim": keys.integer("embedding_length", low=1) // heads,
        "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256,
    }  # fmt: skip


MINICPM3 = Architecture(
    config=_config,
    layer={name: target for name, target in DEEPSEEK2.layer.items() if "exp" not in name and name != "ffn_gate_inp"},
    latent=True,
)
