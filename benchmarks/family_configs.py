"""Configurations for `families.py` of decoder families for which transformers has no class, or none that it maps to a causal
language model. Two layers, sizes as in a small published model of the family where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXT_PARTS: Mapping[str, str] = {
    "glm5_next_text": "Glm5NextForCausalLM",
    "minimax_m3_vl_text": "MiniMaxM3SparseForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
    "muse_glimmer_text": "MuseGlimmerForCausalLM",
    "muse_spark_text": "MuseSparkForConditionalGeneration",
}
"""model_type -> architecture, of configuration classes that describe the text model of a larger one."""
_SIZES: dict[str, Any] = {
    "vocab_size": 8192, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 2, "num_attention_heads": 16,
    "num_key_value_heads": 16, "max_position_embeddings": 4096, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    "tie_word_embeddings": False,
}  # fmt: skip
_GROUPED = {**_SIZES, "num_key_value_heads": 4}
_MIXTURE = {
    **_GROUPED, "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "norm_topk_prob": True,
}  # fmt: skip
_BAILING = {
    **_MIXTURE, "num_experts": 16, "num_shared_experts": 1, "head_dim": 128, "n_group": 4, "topk_group": 2,
    "routed_scaling_factor": 2.5, "partial_rotary_factor": 0.5, "num_nextn_predict_layers": 0,
    "moe_shared_expert_intermediate_size": 1408, "use_qk_norm": True,
}  # fmt: skip
_LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_YARN = {
    "type": "deepseek_yarn",
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
}


def _without(config: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


_LING: dict[str, Any] = {
    **_MIXTURE, **_LATENT, "num_key_value_heads": 16, "num_experts": 16, "num_shared_experts": 1, "n_group": 4, "topk_group": 2,
    "routed_scaling_factor": 2.5, "layer_group_size": 2, "head_dim": 128, "q_lora_rank": None, "num_nextn_predict_layers": 0,
    "partial_rotary_factor": 0.5,
}  # fmt: skip
_HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
CONFIGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "iquestloopcoder": ("IQuestLoopCoderForCausalLM", {**_GROUPED, "head_dim": 128, "loop_num": 2, "loop_window_size": 64}),
    "phi4flash": (
        "Phi4FlashForCausalLM",
        {**_without(_GROUPED, "rope_theta"), "num_hidden_layers": 4, "mb_per_layer": 2, "sliding_window": 512},
    ),
    "motif": ("MotifForCausalLM", {**_without(_SIZES, "hidden_act"), "hidden_act": "poly_norm"}),
    "pangu_ultra_moe": (
        "PanguUltraMoEForCausalLM",
        {**_MIXTURE, **_LATENT, "num_key_value_heads": 16, "q_lora_rank": 1536, "n_routed_experts": 16, "n_shared_experts": 1,
         "routed_scaling_factor": 2.5, "sandwich_norm": True},
    ),
    "plamo2": (
        "Plamo2ForCausalLM",
        {**_without(_GROUPED, "hidden_act", "rope_theta"), "hidden_size_per_head": 128, "mamba_num_heads": 32,
         "mamba_d_state": 64, "mamba_d_conv": 4, "mamba_step": 2, "tie_word_embeddings": True},
    ),
    "teleflm": (
        "TeleFLMForCausalLM", {**_SIZES, "use_mup": True, "input_mult": 2.0, "output_mult": 0.5, "mup_scale_factor": 2.0}
    ),
    "xverse": ("XverseForCausalLM", _SIZES),
    "xverse_moe": (
        "XverseMoeForCausalLM",
        {**_SIZES, "intermediate_size": 1408, "num_experts": 16, "num_shared_experts": 2, "moe_top_k": 6},
    ),
    "alice_ai": (
        "AliceAIForCausalLM",
        {**_GROUPED, "head_dim": 128, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 16,
         "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
         "block_attn_res_block_size": 2, "num_experts": 16, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
         "shared_expert_intermediate_size": 768, "norm_topk_prob": True, "rope_parameters": _HALF},
    ),
    "deepseek_v41": (
        "DeepseekV41ForCausalLM",
        {
            **_SIZES, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1280, "o_groups": 8,
            "o_lora_rank": 1024, "n_routed_experts": 16, "num_experts_per_tok": 6, "moe_intermediate_size": 1024,
            "n_shared_experts": 1, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "swiglu_limit": 10.0,
            "sliding_window": 128, "rms_norm_eps": 1e-20, "compress_ratios": [0, 1], "kv_source_layer_ids": [1],
            "index_source_layer_ids": [1], "candidate_source_layer_id": -1, "index_n_heads": 32, "index_head_dim": 128,
            "index_topk": 512, "hc_mult": 4, "hc_sinkhorn_iters": 20, "engram_layer_ids": [], "engram_num_embeddings": [],
        },
    ),
    "gigachat3_5": (
        "GigaChat35ForCausalLM",
        {**_MIXTURE, **_LATENT, "num_key_value_heads": 16, "layer_types": ["linear_attention", "attention"],
         "q_lora_rank": 1536, "n_routed_experts": 16, "n_shared_experts": 2, "moe_intermediate_size": 896, "n_group": 4,
         "topk_group": 2, "routed_scaling_factor": 2.5, "swiglu_limit": 10.0, "linear_num_key_heads": 8,
         "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
         "linear_gating_type": "zero_centered_sigmoid"},
    ),
    "param2moe": (
        "Param2MoEForCausalLM",
        {**_MIXTURE, "num_experts": 16, "num_shared_experts": 2, "head_dim": 128, "n_group": 1, "topk_group": 1,
         "routed_scaling_factor": 2.5, "moe_shared_expert_intermediate_size": 2816, "use_qk_norm": True},
    ),
    "plamo3": (
        "Plamo3ForCausalLM",
        {**_without(_GROUPED, "hidden_act", "rope_theta"), "head_dim": 128, "hidden_activation": "swiglu", "window_size": 2048,
         "sliding_window_pattern": 2, "rope_theta": 1e6, "rope_local_theta": 1e4, "tie_word_embeddings": True},
    ),
    "rnj1": (
        "Rnj1ForCausalLM",
        {**_without(_SIZES, "hidden_act"), "model_type": "gemma3_text", "hidden_size": 4096, "intermediate_size": 16384,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_activation": "gelu_pytorch_tanh",
         "layer_types": ["full_attention"] * 2, "query_pre_attn_scalar": 128},
    ),
    "rwkv7": (
        "RWKV7ForCausalLM",
        {"model_type": "rwkv7", "vocab_size": 8192, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 2,
         "head_dim": 64, "decay_low_rank_dim": 96, "a_low_rank_dim": 96, "gate_low_rank_dim": 256, "v_low_rank_dim": 64,
         "hidden_act": "sqrelu", "norm_bias": True, "norm_eps": 1e-5, "norm_first": True, "attn": None,
         "max_position_embeddings": 4096, "tie_word_embeddings": False},
    ),
    "solar": ("SolarForCausalLM", {**_GROUPED, "bskcn_1": [0], "bskcn_2": [], "bskcn_3": [1], "bskcn_4": []}),
    "spark2_5": (
        "Spark2_5ForCausalLM",
        {**_without(_GROUPED, "rope_theta"), "head_dim": 128, "hidden_act": "gelu", "sliding_window": 512,
         "layer_types": ["sliding_attention", "full_attention"], "gate_attn_act_mode": "sigmoid",
         "headwise_attn_output_gate": True, "tie_word_embeddings": True, "rope_parameters": {
             "full_attention": {**_HALF, "rope_theta": 5e6},
             "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    ),
    "apertus1p5_text": ("Apertus1p5TextForCausalLM", {**_GROUPED, "hidden_act": "xielu", "rope_parameters": None}),
    "bailing_moe_linear": ("BailingMoeV2_5ForCausalLM", {**_LING, "group_norm_size": 2, "linear_silu": False}),
    "bailing_moe_v3": ("BailingMoeV3ForCausalLM", {**_LING, "no_kda_lora": True, "rope_parameters": _HALF}),
    "deci": (
        "DeciLMForCausalLM",
        {**_GROUPED, "block_configs": [
            {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.75}}, {"attention": {"no_op": True}, "ffn": {
                "ffn_mult": 1.3125}}]},
    ),
    "step3p5": (
        "Step3p5ForCausalLM",
        {**_without(_SIZES, "num_key_value_heads"), "head_dim": 128, "num_attention_groups": 8, "moe_num_experts": 16,
         "moe_top_k": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280, "moe_router_scaling_factor": 3.0,
         "moe_layers_enum": "1", "use_moe_router_bias": True, "norm_expert_weight": True, "use_head_wise_attn_gate": True,
         "attention_other_setting": {"num_attention_heads": 24, "num_attention_groups": 8}, "sliding_window": 512,
         "layer_types": ["full_attention", "sliding_attention"], "rope_theta": [5e6, 1e4],
         "partial_rotary_factors": [0.5, 1.0]},
    ),
    "baichuan": ("BaichuanForCausalLM", {**_without(_SIZES, "max_position_embeddings"), "model_max_length": 4096}),
    "baichuan_7b": ("BaiChuanForCausalLM", _SIZES),
    "bailing_moe": (
        "BailingMoeForCausalLM",
        {**_MIXTURE, "num_experts": 16, "num_shared_experts": 2, "use_bias": False, "use_qkv_bias": False, "norm_head": False},
    ),
    "bailing_moe_v2": ("BailingMoeV2ForCausalLM", _BAILING),
    "sarvam_moe": ("SarvamMoEForCausalLM", _BAILING),
    "chatglm": (
        "ChatGLMForConditionalGeneration",
        {
            "model_type": "chatglm", "num_layers": 2, "padded_vocab_size": 8192, "hidden_size": 2048, "ffn_hidden_size": 6848,
            "kv_channels": 128, "num_attention_heads": 16, "seq_length": 8192, "layernorm_epsilon": 1e-5, "rope_ratio": 50,
            "add_qkv_bias": True, "add_bias_linear": False, "multi_query_attention": True, "multi_query_group_num": 2,
            "original_rope": True, "rmsnorm": True,
        },
    ),
    "deepseek": (
        "DeepseekForCausalLM",
        {**_MIXTURE, "n_routed_experts": 16, "n_shared_experts": 2, "norm_topk_prob": False, "scoring_func": "softmax",
         "num_key_value_heads": 16},
    ),
    "sarvam_mla": (
        "SarvamMLAForCausalLM",
        {**_MIXTURE, **_LATENT, "num_experts": 16, "num_shared_experts": 1, "q_lora_rank": 1536, "n_group": 4, "topk_group": 2,
         "routed_scaling_factor": 2.5, "num_key_value_heads": 16, "rope_scaling": _YARN},
    ),
    "exaone": (
        "ExaoneForCausalLM",
        {**_without(_GROUPED, "num_hidden_layers", "hidden_act", "rms_norm_eps"), "model_type": "exaone", "num_layers": 2,
         "layer_norm_epsilon": 1e-5, "activation_function": "silu"},
    ),
    "internlm": ("InternLMForCausalLM", {**_SIZES, "bias": True}),
    "internlm2": ("InternLM2ForCausalLM", {**_GROUPED, "bias": False}),
    "internlm2_ve": ("InternLM2VEForCausalLM", {**_GROUPED, "bias": False}),
    "kimi_k3": (
        "KimiK3LinearForCausalLM",
        {
            **_SIZES, **_LATENT, "model_type": "kimi_linear", "hidden_act": "situ", "activation_situ_beta": 1.5,
            "activation_situ_linear_beta": 2.5, "attn_res_block_size": 2, "q_lora_rank": 1536, "mla_use_nope": True,
            "mla_use_output_gate": True, "num_experts": 16, "num_experts_per_token": 6, "num_shared_experts": 1,
            "moe_intermediate_size": 1024, "moe_router_activation_func": "sigmoid", "moe_renormalize": True,
            "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "moe_layer_freq": 1, "use_grouped_topk": True,
            "num_expert_group": 1, "topk_group": 1, "routed_expert_hidden_size": 1024, "latent_moe_use_norm": True,
            "model_max_length": 4096, "linear_attn_config": {
                "num_heads": 16, "head_dim": 128, "short_conv_kernel_size": 4, "kda_layers": [1], "full_attn_layers": [2],
                "gate_lower_bound": -5.0, "use_full_rank_gate": True},
        },
    ),
    "hrm_text": (
        "HrmTextForCausalLM",
        {**_without(_SIZES, "rope_theta", "num_key_value_heads"), "num_hidden_layers": 1, "H_cycles": 1, "L_cycles": 1},
    ),
    "mimo": ("MiMoForCausalLM", {**_GROUPED, "model_type": "mimo"}),
    "minicpm": ("MiniCPMForCausalLM", {**_SIZES, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}),
    "nanbeige": ("NanbeigeForCausalLM", {**_GROUPED, "num_loops": 2, "skip_loop_final_norm": False}),
    "orion": ("OrionForCausalLM", _SIZES),
    "ouro": ("OuroForCausalLM", {**_SIZES, "total_ut_steps": 2}),
    "pangu_embedded": ("PanguEmbeddedForCausalLM", {**_GROUPED, "bias": True}),
    "phi4mm": ("Phi4MMForCausalLM", {**_GROUPED, "partial_rotary_factor": 0.75}),
    "qwen": (
        "QWenLMHeadModel",
        {**_without(_SIZES, "rms_norm_eps", "num_key_value_heads", "hidden_act"), "model_type": "qwen", "seq_length": 4096,
         "intermediate_size": 11008, "kv_channels": 128, "layer_norm_epsilon": 1e-6, "rotary_emb_base": 10000.0,
         "use_dynamic_ntk": True, "use_logn_attn": True, "no_bias": True},
    ),
    "refined_web": (
        "RWForCausalLM",
        {"model_type": "RefinedWebModel", "vocab_size": 8192, "hidden_size": 2048, "n_layer": 2, "n_head": 32,
         "multi_query": True, "parallel_attn": True, "alibi": False, "bias": False},
    ),
    "stablelm_epoch": (
        "StableLMEpochForCausalLM",
        {**_without(_SIZES, "rms_norm_eps"), "norm_eps": 1e-5, "rope_pct": 0.25, "use_qkv_bias": False},
    ),
    "telechat": (
        "TeleChat2ForCausalLM",
        {"model_type": "telechat", "vocab_size": 8192, "hidden_size": 2048, "ffn_hidden_size": 5632, "n_layer": 2, "n_head": 16,
         "seq_length": 4096, "layer_norm_epsilon": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
         "embed_layernorm": False},
    ),
}  # fmt: skip
"""Name -> (architecture, config.json)."""
