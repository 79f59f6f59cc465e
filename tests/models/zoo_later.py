"""More of `zoo_more.MORE`: text families that came after `zoo_text`."""

from __future__ import annotations

from typing import Any

import transformers
from zoo_text import INDEXED, LATENT

_EXPERTS = {"num_experts_per_tok": 3, "moe_intermediate_size": 24, "routed_scaling_factor": 1.7}
_GRANITE = {"embedding_multiplier": 2.0, "logits_scaling": 1.7, "residual_multiplier": 0.6, "attention_multiplier": 0.3}
LATER: dict[str, tuple[Any, dict[str, Any]]] = {
    "axk1": (
        transformers.AXK1Config,
        {**LATENT, **_EXPERTS, "q_lora_rank": 40, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_hidden_layers": 3},
    ),
    "axk2": (
        transformers.AXK2Config,
        {**INDEXED, "index_n_heads": 16, "gated_norm_rank": 6, "first_k_dense_replace": 1, "num_hidden_layers": 3},
    ),
    "axk2-groups": (
        transformers.AXK2Config,
        {**INDEXED, "index_n_heads": 16, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 2,
         "mlp_layer_types": ["sparse", "dense"]},
    ),
    "dbrx": (
        transformers.DbrxConfig,
        {
            "d_model": 48, "n_heads": 4, "attn_config": {"clip_qkv": 0.7, "kv_n_heads": 2, "rope_theta": 5e5},
            "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 6, "moe_top_k": 3}, "rope_theta": 5e5,
        },
    ),
    "hrm-text": (transformers.HrmTextConfig, {"head_dim": 16, "embedding_scale": 3.0}),
    "olmo-clipped": (transformers.OlmoConfig, {"clip_qkv": 0.7}),
    "codegen": (transformers.CodeGenConfig, {"rotary_dim": 8}),
    "diffllama": (transformers.DiffLlamaConfig, {"num_hidden_layers": 3, "head_dim": 16, "attention_bias": True}),
    "dots3-note": (
        transformers.Dots3NoteTextConfig,
        {
            **INDEXED, "num_hidden_layers": 6, "head_dim": 40, "index_n_heads": 16, "n_group": 4, "topk_group": 2,
            "num_attention_heads": 4, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 2, "swa_q_lora_rank": 20,
            "swa_kv_lora_rank": 24, "swa_head_dim": 24, "swa_qk_nope_head_dim": 16, "swa_v_head_dim": 12,
            "sliding_window_size": 9, "shared_experts_intermediate_size": 20, "n_shared_experts": 2, "pad_token_id": 0,
        },
    ),
    "flint": (
        transformers.FlintConfig,
        {
            "num_hidden_layers": 4, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 32, "sliding_window": 9, "mlp_only_layers": [0], "layer_types": [
                "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gpt-neox-japanese": (transformers.GPTNeoXJapaneseConfig, {}),
    "granite-moe-swa": (
        transformers.GraniteMoeSWAConfig,
        {
            **_GRANITE, "num_hidden_layers": 3, "hidden_size": 64, "sliding_window": 9, "num_local_experts": 5,
            "intermediate_size": 24, "shared_intermediate_size": 32, "layer_rope_theta": [1000.0, 50.0, 0],
        },
    ),
    "kolibri1": (
        transformers.Kolibri1Config,
        {
            "num_hidden_layers": 3, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 32, "sliding_window": 9, "norm_topk_prob": True,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "xlstm": (
        transformers.xLSTMConfig,
        {"hidden_size": 128, "num_heads": 4, "num_hidden_layers": 3, "gate_soft_cap": 2.0, "output_logit_soft_cap": 4.0},
    ),
    "rwkv-4": (transformers.RwkvConfig, {"intermediate_size": 96, "num_hidden_layers": 3}),
    "openai-gpt": (transformers.OpenAIGPTConfig, {}),
    "xglm": (transformers.XGLMConfig, {"ffn_dim": 80, "pad_token_id": 0}),
    "zaya": (
        transformers.ZayaConfig,
        {
            "num_hidden_layers": 4, "head_dim": 16, "num_experts": 5, "moe_intermediate_size": 24, "router_hidden_size": 20,
            "sliding_window": 9, "layer_types": ["hybrid", "hybrid_sliding", "hybrid", "hybrid_sliding"], "lm_head_bias": True,
            "rope_parameters": {
                "hybrid": {"rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 0.5},
                "hybrid_sliding": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5},
            },
        },
    ),
    "zamba": (
        transformers.ZambaConfig,
        {
            "num_hidden_layers": 5, "attn_layer_period": 2, "attn_layer_offset": 1, "hidden_size": 48, "n_mamba_heads": 3,
            "num_key_value_heads": 4, "mamba_d_state": 12, "mamba_d_conv": 3, "mamba_dt_rank": 5,
        },
    ),
    "zamba2": (
        transformers.Zamba2Config,
        {
            "num_hidden_layers": 4, "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid"],
            "hidden_size": 64, "n_mamba_heads": 4, "mamba_d_state": 12, "mamba_ngroups": 2, "num_mem_blocks": 2,
            "use_shared_attention_adapter": True, "num_key_value_heads": 4,
            "use_mem_rope": True, "adapter_rank": 6, "time_step_min": 0.4,
        },
    ),
    "zamba2-one-block": (
        transformers.Zamba2Config,
        {
            "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "hidden_size": 64,
            "n_mamba_heads": 4, "mamba_d_state": 12, "adapter_rank": 6,
        },
    ),
}  # fmt: skip
_NEW: dict[str, tuple[str, dict[str, Any]]] = {
    "lara-mini": (
        "LaraMiniConfig",
        {
            "num_hidden_layers": 5, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 12, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 3, "sliding_window": 9,
            "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32,
        },
    ),
}  # fmt: skip
"""The same of classes that transformers before 5.24 lacks, by name."""
LATER |= {
    name: (getattr(transformers, kind), different) for name, (kind, different) in _NEW.items() if hasattr(transformers, kind)
}
"""Name -> (configuration class, what differs from `zoo.SMALL`)."""
