"""GLM-4.5, 4.6 and 4.7."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import (
    EXPERTS,
    HEAD_NORMS,
    LAYER,
    NEXTN,
    SIGMOID,
    Architecture,
    gating,
    has,
    head_width,
    mixture,
    rope,
    scale,
)
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    gating(keys, SIGMOID, (SIGMOID,))
    return {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_act": "silu",
        **mixture(keys, "n_routed_experts"), "n_shared_experts": keys.integer("expert_shared_count", default=0),
        "n_group": keys.integer("expert_group_count", default=1, low=1),
        "topk_group": keys.integer("expert_group_used_count", default=1, low=1),
        "first_k_dense_replace": keys.integer("leading_dense_block_count", default=0), "routed_scaling_factor": scale(keys),
        "norm_topk_prob": keys.flag("expert_weights_norm", default=False), "num_nextn_predict_layers": _modules(keys, files),
        "attention_bias": has(files, "attn_q.bias", "attn_qkv.bias"), "use_qk_norm": has(files, "attn_q_norm.weight"),
        "rope_parameters": rope(keys, files, head_width(keys)),
    }  # fmt: skip


def _modules(keys: Keys, files: GGUFFiles) -> int:
    """Some files count layers for multi-token prediction that they do not hold."""
    held = any(name.endswith(".nextn.eh_proj.weight") for name in files.tensors)
    return keys.integer("nextn_predict_layers", default=0, high=64) if held else 0


GLM4MOE = Architecture(
    config=_config,
    layer={
        **LAYER, **HEAD_NORMS, "post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate",
        "exp_probs_b": "mlp.gate.e_score_correction_bias", "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
        "ffn_up_shexp": "mlp.shared_experts.up_proj", "ffn_down_shexp": "mlp.shared_experts.down_proj",
    },
    module=NEXTN,
    experts=EXPERTS,
    dense=("ffn_gate_inp",),
    bare=("exp_probs_b",),
)  # fmt: skip
