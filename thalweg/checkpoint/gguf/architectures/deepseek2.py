"""DeepSeek-V2, V3, R1, Kimi K2, GLM-4.7-Flash, and Youtu, which has no MoE layers. The up-projections of latents are separate
tensors by head, with the keys' transposed. Files from before April 2025 have both in one tensor."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.gguf.architectures.common import LAYER, SIGMOID, SOFTMAX, Architecture, gating, has, rope
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.keys import Keys

GLM_VOCAB = 154_880
"""Vocabulary of GLM-4.7-Flash. Its first files do not name the router's function."""


def _config(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    turned = keys.integer("rope.dimension_count", low=2, high=1 << 16)
    key = keys.integer("attention.key_length_mla", default=keys.integer("attention.key_length", low=1), low=turned + 1)
    value = keys.integer("attention.value_length_mla", default=keys.integer("attention.value_length", low=1), low=1)
    positions = rope(keys, files, turned)
    if "rope.scaling.yarn_log_multiplier" in keys:  # files store a tenth
        every = round(keys.real("rope.scaling.yarn_log_multiplier") * 10, 6)
        positions = {k: v for k, v in positions.items() if k != "attention_factor"} | {"mscale": every, "mscale_all_dim": every}
    heads = keys.integer("attention.head_count", low=1)
    settings = {
        "hidden_act": "silu", "head_dim": turned, "num_key_value_heads": heads, "rope_parameters": positions,
        "q_lora_rank": keys.integer("attention.q_lora_rank", low=1) if "attention.q_lora_rank" in keys else None,
        "kv_lora_rank": keys.integer("attention.kv_lora_rank", low=1), "qk_rope_head_dim": turned,
        "qk_nope_head_dim": key - turned, "v_head_dim": value, "attention_bias": has(files, "attn_kv_a_mqa.bias"),
    }  # fmt: skip
    experts = keys.integer("expert_count", default=0, high=1 << 16)
    if not experts:
        return settings | {"architectures": ["YoutuForCausalLM"], "model_type": "youtu"}
    return settings | _mixtures(keys, files, experts)


def _mixtures(keys: Keys, files: GGUFFiles, experts: int) -> dict[str, Any]:
    sigmoids = (
        any(name.endswith("exp_probs_b.bias") for name in files.tensors)
        or files.tensors["token_embd.weight"].shape[0] == GLM_VOCAB
    )
    chosen = gating(keys, SIGMOID if sigmoids else SOFTMAX, (SOFTMAX, SIGMOID))
    groups = keys.integer("expert_group_count", default=1, low=1)
    result = {
        "n_routed_experts": experts, "num_experts_per_tok": keys.integer("expert_used_count", low=1),
        "n_shared_experts": keys.integer("expert_shared_count", default=0),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length", low=1),
        "first_k_dense_replace": keys.integer("leading_dense_block_count", default=0),
        "routed_scaling_factor": keys.real("expert_weights_scale", default=1.0) or 1.0,
        "norm_topk_prob": keys.flag("expert_weights_norm", default=False),
        "n_group": groups, "topk_group": keys.integer("expert_group_used_count", default=1, low=1),
        "num_nextn_predict_layers": 0,
    }  # fmt: skip
    if chosen == SIGMOID:
        return result | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    method = "group_limited_greedy" if groups > 1 else "greedy"
    return result | {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "topk_method": method}


DEEPSEEK2 = Architecture(
    config=_config,
    layer={
        **{k: v for k, v in LAYER.items() if k not in ("attn_k", "attn_v")},
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        "attn_k_b": "self_attn.k_b_proj",
        "attn_v_b": "self_attn.v_b_proj",
        "ffn_gate_inp": "mlp.gate",
        "exp_probs_b": "mlp.gate.e_score_correction_bias",
        "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
        "ffn_up_shexp": "mlp.shared_experts.up_proj",
        "ffn_down_shexp": "mlp.shared_experts.down_proj",
    },
    experts={
        "ffn_gate_exps": "mlp.experts.{}.gate_proj",
        "ffn_up_exps": "mlp.experts.{}.up_proj",
        "ffn_down_exps": "mlp.experts.{}.down_proj",
    },
    dense=("ffn_gate_inp", "attn_kv_b", "attn_k_b", "attn_v_b"),
    by_head={"attn_k_b": True, "attn_v_b": False},
    bare=("exp_probs_b",),
    latent=True,
)
