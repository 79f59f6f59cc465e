"""Configurations of families that are built of parts which `zoo.CONFIGS` has already. They are held against transformers, and
their bytes counted, but they do not go through every test of the engine."""

from __future__ import annotations

from typing import Any

import transformers
from zoo_later import LATER
from zoo_rest import REST
from zoo_text import TEXT

_EIGHTS = {"hidden_size": 64}  # a quarter of a head is an even number
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20,
}  # fmt: skip
_PHI = [1.0 + 0.5 * i for i in range(3)]
GEMMA4_TYPES = [
    "sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"
]  # fmt: skip
GEMMA4_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 5000.0},
}
MORE: dict[str, tuple[Any, dict[str, Any]]] = {
    "gemma": (transformers.GemmaConfig, {"head_dim": 16, "tie_word_embeddings": True, "num_key_value_heads": 1}),
    "gemma2": (
        transformers.Gemma2Config,
        {
            "head_dim": 16, "num_hidden_layers": 3, "sliding_window": 10, "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0, "tie_word_embeddings": True,
        },
    ),
    "phi3": (transformers.Phi3Config, {"pad_token_id": 0, "sliding_window": 12}),
    "phi4-mini": (
        transformers.Phi3Config,
        {
            "pad_token_id": 0, "tie_word_embeddings": True, "original_max_position_embeddings": 128,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "short_factor": _PHI,
                "long_factor": [2 * f for f in _PHI], "original_max_position_embeddings": 128,
            },
        },
    ),
    "glm": (transformers.GlmConfig, {"head_dim": 24, "attention_bias": True, "pad_token_id": 0}),
    "olmo2": (transformers.Olmo2Config, {}),
    "olmo3": (
        transformers.Olmo3Config,
        {
            "num_hidden_layers": 5, "sliding_window": 10,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "full_attention": {
                    "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                    "attention_factor": 1.2,
                },
            },
        },
    ),
    "granite": (
        transformers.GraniteConfig,
        {
            "embedding_multiplier": 3.0, "logits_scaling": 0.7, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
            "tie_word_embeddings": True,
        },
    ),
    "smollm3": (transformers.SmolLM3Config, {"num_hidden_layers": 5, "pad_token_id": 0}),
    "seed-oss": (transformers.SeedOssConfig, {"head_dim": 16, "attention_out_bias": True}),
    "exaone4": (transformers.Exaone4Config, {"num_hidden_layers": 5, "sliding_window": 9}),
    "exaone4-full": (transformers.Exaone4Config, {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "nemotron": (transformers.NemotronConfig, {"mlp_bias": True}),
    "arcee": (transformers.ArceeConfig, {"attention_bias": True}),
    "starcoder2": (transformers.Starcoder2Config, {"sliding_window": 12}),
    "cohere": (transformers.CohereConfig, {"logit_scale": 0.3, "pad_token_id": 0}),
    "cohere-plus": (transformers.CohereConfig, {"logit_scale": 0.3, "pad_token_id": 0, "use_qk_norm": True}),
    "cohere2": (
        transformers.Cohere2Config, {"logit_scale": 0.3, "num_hidden_layers": 5, "sliding_window": 9, "pad_token_id": 0}
    ),
    "stablelm": (transformers.StableLmConfig, {"use_qkv_bias": True, **_EIGHTS}),
    "stablelm-parallel": (transformers.StableLmConfig, {"use_parallel_residual": True, "num_hidden_layers": 1, **_EIGHTS}),
    "stablelm-12b": (
        transformers.StableLmConfig, {"use_parallel_residual": True, "qk_layernorm": True, "num_hidden_layers": 1, **_EIGHTS}
    ),
    "persimmon": (transformers.PersimmonConfig, {"num_key_value_heads": 4, **_EIGHTS}),
    "phi": (transformers.PhiConfig, {}),
    "gpt-neox": (transformers.GPTNeoXConfig, {**_EIGHTS}),
    "gpt-neox-sequential": (
        transformers.GPTNeoXConfig, {"use_parallel_residual": False, "num_hidden_layers": 1, **_EIGHTS}
    ),
    "opt": (transformers.OPTConfig, {"ffn_dim": 80, "word_embed_proj_dim": 48, "pad_token_id": 1}),
    "opt-post-norm": (
        transformers.OPTConfig,
        {"ffn_dim": 80, "word_embed_proj_dim": 48, "do_layer_norm_before": False, "num_hidden_layers": 1, "pad_token_id": 1},
    ),
    "falcon": (transformers.FalconConfig, {}),
    "falcon-40b": (transformers.FalconConfig, {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-2": (
        transformers.FalconConfig,
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "num_hidden_layers": 1},
    ),
    "falcon-rw": (
        transformers.FalconConfig, {"multi_query": False, "parallel_attn": False, "bias": True, "num_hidden_layers": 1}
    ),
    "hunyuan": (
        transformers.HunYuanDenseV1Config,
        {"head_dim": 16, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0}},
    ),
    "ministral3": (
        transformers.Ministral3Config,
        {
            "head_dim": 16, "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1000.0, "factor": 16.0, "original_max_position_embeddings": 16,
                "beta_fast": 4.0, "beta_slow": 0.5, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4,
            },
        },
    ),
    "olmoe": (transformers.OlmoeConfig, {"num_experts": 6, "num_experts_per_tok": 2}),
    "qwen2-moe": (
        transformers.Qwen2MoeConfig,
        {
            "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32,
            "mlp_only_layers": [1], "num_hidden_layers": 3,
        },
    ),
    "glm4-moe": (
        transformers.Glm4MoeConfig,
        {
            "head_dim": 24, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 2,
            "n_group": 4, "topk_group": 2, "use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 1.7,
            "pad_token_id": 0,
        },
    ),
    "minimax-m2": (
        transformers.MiniMaxM2Config,
        {"head_dim": 24, "rotary_dim": 12, "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 24},
    ),
    "ernie4.5-moe": (
        transformers.Ernie4_5_MoeConfig,
        {
            "num_hidden_layers": 3, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24, "moe_layer_interval": 2,
            "pad_token_id": 0,
        },
    ),
    "granite-moe": (
        transformers.GraniteMoeConfig,
        {
            "embedding_multiplier": 3.0, "logits_scaling": 0.7, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
            "num_local_experts": 5, "intermediate_size": 24,
        },
    ),
    "qwen3.5-moe": (
        transformers.Qwen3_5MoeTextConfig,
        {
            "num_hidden_layers": 4, "head_dim": 16, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 24, "linear_value_head_dim": 16,
        },
    ),
    "mamba": (transformers.MambaConfig, {"state_size": 12, "time_step_rank": 5, "conv_kernel": 3}),
    "falcon-mamba": (transformers.FalconMambaConfig, {"tie_word_embeddings": False, "use_bias": True, "mixer_rms_eps": 1e-3}),
    "mamba2": (
        transformers.Mamba2Config,
        {"num_heads": 6, "head_dim": 16, "n_groups": 3, "state_size": 20, "use_bias": True, "time_step_limit": (0.2, 0.9)},
    ),
    "bamba": (
        transformers.BambaConfig,
        {
            "num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_n_heads": 6, "mamba_d_state": 20, "mamba_d_head": 32,
            "mamba_expand": 3, **_EIGHTS,
        },
    ),
    "granite-hybrid": (
        transformers.GraniteMoeHybridConfig,
        {
            "layer_types": ["linear_attention", "full_attention"], "mamba_n_heads": 6, "mamba_d_state": 20,
            "embedding_multiplier": 3.0, "logits_scaling": 0.7, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
            "num_local_experts": 5, "intermediate_size": 24, "shared_intermediate_size": 32,
        },
    ),
    "granite-hybrid-dense": (
        transformers.GraniteMoeHybridConfig,
        {
            "layer_types": ["full_attention", "linear_attention"], "mamba_n_heads": 6, "mamba_d_state": 20,
            "num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 32,
            "position_embedding_type": "rope", "attention_multiplier": 0.2,
        },
    ),
    "falcon-h1": (
        transformers.FalconH1Config,
        {
            "head_dim": 16,
            "mamba_d_ssm": 80, "mamba_n_heads": 5, "mamba_d_state": 24, "ssm_multipliers": [0.6, 1.3, 0.8, 1.7, 0.9],
            "ssm_in_multiplier": 1.4, "ssm_out_multiplier": 0.7, "attention_in_multiplier": 1.2,
            "attention_out_multiplier": 0.8, "key_multiplier": 0.6, "mlp_multipliers": [1.5, 0.6],
            "embedding_multiplier": 2.0, "lm_head_multiplier": 0.9, "attention_bias": True, "mamba_proj_bias": True,
            "projectors_bias": True,
        },
    ),
    "falcon-h1-normed": (
        transformers.FalconH1Config,
        {"mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_n_groups": 3, "mamba_d_state": 24, "mamba_rms_norm": True,
         "num_hidden_layers": 1},
    ),
    "lfm2-moe": (
        transformers.Lfm2MoeConfig,
        {
            "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1, "num_experts": 6,
            "num_experts_per_tok": 2, "moe_intermediate_size": 24, "conv_bias": True, "routed_scaling_factor": 1.7,
        },
    ),
    "olmo-hybrid": (  # transformers 5.23 writes convolutions of equal thirds alone
        transformers.OlmoHybridConfig,
        {
            "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 16,
            "pad_token_id": 0, "head_dim": 16,
        },
    ),
    "gpt2": (transformers.GPT2Config, {}),
    "gptj": (transformers.GPTJConfig, {"rotary_dim": 8}),
    "gpt-oss": (
        transformers.GptOssConfig,
        {
            "head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 24, "num_hidden_layers": 3,
            "sliding_window": 9, "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "original_max_position_embeddings": 32,
                "beta_fast": 4.0, "beta_slow": 0.5, "truncate": False,
            },
        },
    ),
    "deepseek-v2": (
        transformers.DeepseekV2Config,
        {
            **_LATENT, "q_lora_rank": 40, "first_k_dense_replace": 1, "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
            "topk_method": "group_limited_greedy", "num_experts_per_tok": 3, "moe_intermediate_size": 24,
            "routed_scaling_factor": 1.7, "attention_bias": True,
        },
    ),
    "deepseek-v2-lite": (
        transformers.DeepseekV2Config,
        {
            **_LATENT, "q_lora_rank": None, "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 3,
            "moe_intermediate_size": 24, "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                "mscale": 0.7, "mscale_all_dim": 0.7,
            },
        },
    ),
    "glm4-moe-lite": (
        transformers.Glm4MoeLiteConfig,
        {
            **_LATENT, "q_lora_rank": 40, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
            "pad_token_id": 0,
        },
    ),
    "minicpm3": (transformers.MiniCPM3Config, {**_LATENT, "q_lora_rank": 40, "dim_model_base": 32, "scale_emb": 3}),
    "youtu": (transformers.YoutuConfig, {**_LATENT, "q_lora_rank": 40}),
    "gemma4-dense": (
        transformers.Gemma4TextConfig,
        {
            "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "sliding_window": 10, "attention_k_eq_v": True,
            "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 288,
            "final_logit_softcapping": 4.0, "rope_parameters": GEMMA4_ROPES, "layer_types": GEMMA4_TYPES[:4],
        },
    ),
    "gemma4-moe": (
        transformers.Gemma4TextConfig,
        {
            "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "sliding_window": 10, "enable_moe_block": True,
            "attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_experts": 6, "top_k_experts": 2,
            "moe_intermediate_size": 24, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 288,
            "rope_parameters": GEMMA4_ROPES, "layer_types": GEMMA4_TYPES[:4],
        },
    ),
    "gemma4-unified": (
        transformers.Gemma4UnifiedTextConfig,
        {"head_dim": 16, "global_head_dim": 32, "sliding_window": 10, "rope_parameters": GEMMA4_ROPES},
    ),
    "gemma3n": (
        transformers.Gemma3nTextConfig,
        {
            "num_hidden_layers": 6, "head_dim": 16, "sliding_window": 10, "hidden_size_per_layer_input": 8, "laurel_rank": 6,
            "vocab_size_per_layer_input": 272, "num_kv_shared_layers": 2, "layer_types": GEMMA4_TYPES,
            "activation_sparsity_pattern": [0.7, 0.7, 0.0, 0.5, 0.0, 0.0], "intermediate_size": [80, 64, 80, 80, 80, 96],
            "altup_num_inputs": 3, "altup_active_idx": 1, "final_logit_softcapping": 4.0,
        },
    ),
    "llama4": (
        transformers.Llama4TextConfig,
        {
            "num_hidden_layers": 5, "head_dim": 16, "intermediate_size": 24, "intermediate_size_mlp": 80, "floor_scale": 8,
            "num_local_experts": 5, "num_experts_per_tok": 2, "attention_chunk_size": 12, "interleave_moe_layer_step": 2,
            "attn_scale": 0.4,
        },
    ),
    "ernie4.5": (transformers.Ernie4_5Config, {"head_dim": 16, "use_bias": True}),
    **LATER,
    **REST,
    **TEXT,
}  # fmt: skip
"""Name -> (configuration class, what differs from `zoo.SMALL`)."""
