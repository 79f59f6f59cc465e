"""DeepSeek-MoE, the first: Llama's attention, a softmax router."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import SOFTMAX, Architecture, gating, has, head_width, mixture, rope, scale
from thalweg.checkpoint.gguf.architectures.glm4moe import GLM4MOE
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    gating(keys, SOFTMAX, (SOFTMAX,))
    return {
        "architectures": ["DeepseekForCausalLM"], "model_type": "deepseek", "hidden_act": "silu", "scoring_func": "softmax",
        **mixture(keys, "n_routed_experts"), "n_shared_experts": keys.integer("expert_shared_count", default=0),
        "first_k_dense_replace": keys.integer("leading_dense_block_count", default=0), "routed_scaling_factor": scale(keys),
        "norm_topk_prob": keys.flag("expert_weights_norm", default=False), "num_nextn_predict_layers": 0,
        "attention_bias": has(files, "attn_q.bias"), "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


DEEPSEEK = Architecture(
    config=_config,
    layer={**GLM4MOE.layer, "ffn_norm": "post_attention_layernorm"},
    experts=GLM4MOE.experts,
    dense=GLM4MOE.dense,
    turned=True,
)
