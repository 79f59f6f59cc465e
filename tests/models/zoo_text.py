"""More of `zoo_more.MORE`: sparse attention, and text families that came after `zoo_rest`."""

from __future__ import annotations

from typing import Any

import transformers

LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20,
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 3, "moe_intermediate_size": 24, "routed_scaling_factor": 1.7}
INDEXED: dict[str, Any] = {
    **LATENT, **_EXPERTS, "q_lora_rank": 40, "n_routed_experts": 8, "first_k_dense_replace": 1, "index_topk": 9,
    "index_head_dim": 24, "index_n_heads": 8,
}  # fmt: skip
CSA, HCA = "compressed_sparse_attention", "heavily_compressed_attention"
TEXT: dict[str, tuple[Any, dict[str, Any]]] = {
    "deepseek-v32": (
        transformers.DeepseekV32Config,
        {
            **INDEXED, "n_group": 4, "topk_group": 2, "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
                "mscale": 1.0, "mscale_all_dim": 1.0,
            },
        },
    ),
    "deepseek-v4": (
        transformers.DeepseekV4Config,
        {
            "num_hidden_layers": 4, "num_key_value_heads": 1, "head_dim": 24, "q_lora_rank": 40, "n_routed_experts": 6,
            "num_experts_per_tok": 3, "moe_intermediate_size": 24, "sliding_window": 9, "o_groups": 2, "o_lora_rank": 20,
            "index_n_heads": 8, "index_head_dim": 16, "index_topk": 4, "partial_rotary_factor": 1 / 3, "swiglu_limit": 1.5,
            "layer_types": ["sliding_attention", CSA, HCA, CSA], "compress_rates": {CSA: 4, HCA: 8},
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
            },
            "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"],
        },
    ),
    "qwen4-exp": (
        transformers.Qwen4ExpTextConfig,
        {
            "num_hidden_layers": 3, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 20, "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 3, "hc_count": 3, "hc_lowrank": 10, "ple_layer_ids": [1, 3], "ple_embed_dim": 32,
            "heads_per_ngram": 2, "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 4,
            "indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 20, "indexer_budget": 12,
            "indexer_compress_ratio": 4, "eos_token_id": 2, "output_gate_type": "sigmoid",
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
    ),
    "inkling": (
        transformers.InklingTextConfig,
        {
            "num_hidden_layers": 3, "head_dim": 16, "swa_num_attention_heads": 6, "swa_num_key_value_heads": 2,
            "swa_head_dim": 8, "sliding_window_size": 9, "d_rel": 5, "rel_extent": 13, "log_scaling_n_floor": 11,
            "log_scaling_alpha": 0.3, "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"], "conv_kernel_size": 3,
            "mlp_layer_types": ["dense", "sparse", "sparse"], "moe_intermediate_size": 24, "n_routed_experts": 6,
            "num_experts_per_tok": 3, "n_shared_experts": 2, "route_scale": 1.7, "logits_mup_width_multiplier": 1.5,
            "pad_token_id": 0,
        },
    ),
    "hy-v4": (
        transformers.HYV4Config,
        {
            **INDEXED, "index_n_heads": 16, "n_group": 2, "topk_group": 1, "swiglu_limit": 0.7, "hc_mult": 3,
            "hc_magnitude": 1.7, "num_hidden_layers": 4, "pad_token_id": 0, "indexer_types": ["full", "full", "shared", "full"],
            "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
        },
    ),
    "mimo-v2-flash": (
        transformers.MiMoV2FlashConfig,
        {
            **_EXPERTS, "num_hidden_layers": 7, "head_dim": 32, "v_head_dim": 20, "n_routed_experts": 6, "sliding_window": 9,
            "attention_bias": True,
        },
    ),
    "laguna": (
        transformers.LagunaConfig,
        {
            "num_hidden_layers": 3, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 32, "moe_routed_scaling_factor": 1.7, "sliding_window": 9,
            "num_attention_heads_per_layer": [4, 6, 4],
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    "laguna-by-element": (
        transformers.LagunaConfig,
        {"num_hidden_layers": 1, "head_dim": 16, "gating": "per-element", "mlp_layer_types": ["dense"]},
    ),
    "kimi-linear": (
        transformers.KimiLinearConfig,
        {
            **LATENT, **_EXPERTS, "num_hidden_layers": 3, "num_local_experts": 8, "num_expert_group": 2, "linear_head_dim": 16,
            "linear_num_heads": 3, "linear_conv_kernel_dim": 3, "first_k_dense_replace": 1, "pad_token_id": 0,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
    ),
    "bailing-hybrid": (
        transformers.BailingHybridConfig,
        {
            **LATENT, **_EXPERTS, "num_hidden_layers": 4, "num_local_experts": 8, "n_group": 4, "topk_group": 2, "head_dim": 16,
            "short_conv_kernel_size": 3, "first_k_dense_replace": 1, "layer_group_size": 2, "pad_token_id": 0,
            "kda_lower_bound": -3.0, "n_shared_experts": 2,
        },
    ),
    "recurrent-gemma": (
        transformers.RecurrentGemmaConfig,
        {
            "num_hidden_layers": 5, "hidden_size": 64, "attention_window_size": 9, "num_key_value_heads": 1, "lru_width": 80,
            "conv1d_width": 3, "logits_soft_cap": 4.0, "intermediate_size": 96, "tie_word_embeddings": True, "pad_token_id": 0,
        },
    ),
    "minimax": (
        transformers.MiniMaxConfig,
        {
            "num_hidden_layers": 4, "head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 24,
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"], "block_size": 8,
            "linear_attn_alpha_factor": 1.7, "linear_attn_beta_factor": 0.8, "full_attn_alpha_factor": 1.3,
            "mlp_alpha_factor": 1.4, "mlp_beta_factor": 0.9, "sliding_window": None,
        },
    ),
    "longcat-flash": (
        transformers.LongcatFlashConfig,
        {
            **LATENT, "num_hidden_layers": 4, "q_lora_rank": 40, "head_dim": 16, "moe_topk": 3, "n_routed_experts": 5,
            "zero_expert_num": 3, "expert_ffn_hidden_size": 24, "routed_scaling_factor": 1.7,
        },
    ),
    "bloom": (transformers.BloomConfig, {"n_head": 4, "n_layer": 2}),
    "bloom-six-heads": (transformers.BloomConfig, {"n_head": 6, "n_layer": 1}),
    "mpt": (transformers.MptConfig, {"d_model": 48, "n_heads": 4, "n_layers": 2, "max_seq_len": 256}),
}  # fmt: skip
"""Name -> (configuration class, what differs from `zoo.SMALL`)."""
