"""dots.llm1: Qwen 3's attention heads, sigmoid router with a correction per expert."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import SIGMOID, Architecture, gating, has, head_width, mixture, rope, scale
from thalweg.checkpoint.gguf.architectures.glm4moe import GLM4MOE
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    gating(keys, SIGMOID, (SIGMOID,))
    return {
        "architectures": ["Dots1ForCausalLM"], "model_type": "dots1", "hidden_act": "silu",
        **mixture(keys, "n_routed_experts"), "n_shared_experts": keys.integer("expert_shared_count", default=0),
        "n_group": keys.integer("expert_group_count", default=1, low=1),
        "topk_group": keys.integer("expert_group_used_count", default=1, low=1),
        "first_k_dense_replace": keys.integer("leading_dense_block_count", default=0), "routed_scaling_factor": scale(keys),
        "norm_topk_prob": keys.flag("expert_weights_norm", default=False), "sliding_window": None,
        "attention_bias": has(files, "attn_q.bias", "attn_qkv.bias"), "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


DOTS1 = Architecture(
    config=_config,
    layer={**GLM4MOE.layer, "ffn_norm": "post_attention_layernorm"},
    experts=GLM4MOE.experts,
    dense=GLM4MOE.dense,
    bare=GLM4MOE.bare,
)
