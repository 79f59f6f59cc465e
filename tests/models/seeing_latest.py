"""Small models that see, of the families of 2026. For tests."""

from __future__ import annotations

from seeing_parts import Seeing, config

GLM_5 = {
    "kv_lora_rank": 32, "q_lora_rank": 40, "qk_nope_head_dim": 24, "v_head_dim": 20, "n_routed_experts": 8, "n_group": 2,
    "topk_group": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "num_hidden_layers": 5, "qk_rope_head_dim": 0,
    "num_key_value_heads": 4, "head_dim": 24,
    "linear_head_dim": 12, "linear_num_heads": 3, "linear_conv_kernel_dim": 3, "index_n_heads": 16, "index_head_dim": 24,
    "index_topk": 12, "index_kpool": 4, "swiglu_limit": 0.8, "hc_mult": 3, "hc_sinkhorn_iters": 5,
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention", "indexed_attention", "indexed_attention"],
    "indexer_types": ["full", "full", "full", "full", "shared"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "dense", "sparse"],
}  # fmt: skip

LATEST: dict[str, Seeing] = {
    "glm5-next": Seeing(
        config(
            "Glm5NextConfig", GLM_5,
            {
                "depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 48, "patch_size": 4,
                "projection_intermediate_size": 56, "swiglu_limit": 0.6,
            }, "<|image_pad|>",
        ),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "Glm5NextImageProcessorPil",
        {"patch_size": 4, "min_image_tokens": 4, "max_image_tokens": 32}, ("image_grid_thw",), writer="Glm5NextProcessor",
        engine={"mamba_block_size": 32, "num_gpu_blocks_override": 160},
    ),
}  # fmt: skip
