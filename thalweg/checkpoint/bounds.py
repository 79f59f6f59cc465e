"""The bounds of numbers in config.json, by key. Keys with bounds that depend on other keys of the file are absent."""

from __future__ import annotations

from collections.abc import Mapping

BOUNDS: Mapping[str, tuple[float, float]] = {
    "downsample_factor": (1, 16),
    "encoder_layers": (1, 1000),
    "final_logit_softcapping": (0, 1_000_000),
    "first_k_dense_replace": (0, 2_147_483_647),
    "head_dim": (1, 1 << 16),
    "intermediate_size": (1, 1 << 24),
    "layer_norm_eps": (0, 1),
    "layer_norm_epsilon": (0, 1),
    "linear_conv_kernel_dim": (2, 64),
    "llama_4_scaling_beta": (0, 1_000_000),
    "mamba_d_state": (1, 1 << 16),
    "max_window_layers": (0, 2_147_483_647),
    "moe_intermediate_size": (1, 1 << 24),
    "moe_num_experts": (1, 1 << 16),
    "n_routed_experts": (1, 1 << 16),
    "norm_eps": (0, 1),
    "num_attention_heads": (1, 1 << 16),
    "num_dense_layers": (0, 2_147_483_647),
    "num_experts": (1, 1 << 16),
    "num_key_value_heads": (1, 1 << 16),
    "num_kv_shared_layers": (0, 2_147_483_647),
    "num_local_experts": (1, 1 << 16),
    "num_nextn_predict_layers": (0, 64),
    "pad_token_id": (0, 2_147_483_647),
    "partial_rotary_factor": (0, 1),
    "q_lora_rank": (1, 1 << 16),
    "rms_norm_eps": (0, 1),
    "rope_theta": (0.001, 1e15),
    "rotary_emb_base": (0.001, 1e15),
    "routed_scaling_factor": (1e-06, 1_000_000),
    "scale_depth": (1e-06, 1_000_000),
    "scale_emb": (1e-06, 1_000_000),
    "shared_expert_intermediate_size": (1, 1 << 24),
    "spatial_merge_size": (1, 16),
    "state_size": (1, 1 << 16),
    "vocab_size": (1, 1 << 24),
}
"""Key -> (least value, largest value). Used by `config.integer` and `config.real`."""
