"""Small models that see, of the families of 2026. For tests."""

from __future__ import annotations

import transformers
from seeing_parts import HALVES, IDEFICS, MROPE, QWEN, SIGLIP, TILED, Seeing, config

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
QWEN_4 = {
    "num_hidden_layers": 3, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20, "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 3, "hc_count": 3, "hc_lowrank": 10, "ple_layer_ids": [1, 3], "ple_embed_dim": 32,
    "heads_per_ngram": 2, "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 4,
    "indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 20, "indexer_budget": 12,
    "indexer_compress_ratio": 4, "output_gate_type": "sigmoid",
    "rope_parameters": {**MROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
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
    "qwen4-exp": Seeing(
        config("Qwen4ExpConfig", QWEN_4, QWEN | {"num_position_embeddings": 36}, "<|image_pad|>"),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "Qwen2VLImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}, **HALVES}, ("image_grid_thw",),
        engine={"mamba_block_size": 32, "num_gpu_blocks_override": 160},
    ),
    "janus": Seeing(
        config(
            "JanusConfig", {"model_type": "llama"},
            {
                "hidden_size": 32, "mlp_ratio": 1.5, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
                "patch_size": 7, "projection_dim": 48, "depth": 3, "num_image_tokens": 16,
            }, "<image>",
            vq_config={"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "latent_channels": 8,
                       "num_embeddings": 8, "projection_dim": 48, "image_token_embed_dim": 48},
        ),
        "<image>", "<image>", "JanusImageProcessorPil", {"size": {"height": 28, "width": 28}}, writer="JanusProcessor",
        holds={"num_image_tokens": 16, "image_start_token": "<begin_of_image>", "image_end_token": "<end_of_image>"},
    ),
    "cohere-compass": Seeing(
        config(
            "CohereCompassConfig",
            {
                "num_hidden_layers": 4, "sliding_window": 20, "logit_scale": 0.7, "head_dim": 12,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "rope_parameters": {"full_attention": None, "sliding_attention": {**MROPE, "mrope_section": [2, 2, 2]}},
            },
            QWEN | {"deepstack_visual_indexes": [0, 2], "num_position_embeddings": 36}, "<|image_pad|>",
        ),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "CohereCompassImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}, **HALVES}, ("image_grid_thw",),
    ),
    "granite-docling": Seeing(
        config(
            "GraniteDoclingConfig",
            {
                "model_type": "granite_docling_text", "embedding_multiplier": 2.0, "residual_multiplier": 0.7,
                "attention_multiplier": 0.2, "logits_scaling": 1.5, "head_dim": 12,
                "max_position_embeddings": 1024,
            },
            IDEFICS | {
                "model_type": "granite_docling_vision", "num_hidden_layers": 3, "scale_factor": 2, "out_hidden_size": 48,
                "deepstack_visual_indexes": [0, 2],
            }, "<image>", density_router_hidden_size=8,
        ),
        "<image>", "<image>", "GraniteDoclingImageProcessorPil",
        {**TILED, "max_patches": 4, "dense_max_patches": 6, "dense_max_scale": 0.9, "dense_min_aspect": 1.2,
         "dense_max_aspect": 4.0},
        ("pixel_attention_mask",), writer="GraniteDoclingProcessor",
        holds={"fake_image_token": "<fake_token_around_image>", "global_image_tag": "<global-img>", "image_seq_len": 4},
        engine={"max_model_len": 640, "num_gpu_blocks_override": 96},
    ),
    "video-llama-3": Seeing(
        config("VideoLlama3Config", {"model_type": "qwen2"}, SIGLIP | {"model_type": "video_llama_3_vision"}, "<|image_pad|>"),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "VideoLlama3ImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 64, "longest_edge": 640}}, ("image_grid_thw", "image_merge_sizes"),
        writer="VideoLlama3Processor",
    ),
    "aria": Seeing(
        config(
            "AriaConfig",
            {
                "model_type": "aria_text", "intermediate_size": 24, "moe_num_experts": 6, "moe_topk": 3,
                "moe_num_shared_experts": 2, "head_dim": 12,
            },
            IDEFICS | {"image_size": 140, "patch_size": 35}, "<image>", projector_patch_to_query_dict={"196": 5, "784": 9},
        ),
        "<image>", "<image>", "AriaImageProcessorPil", {"max_image_size": 490, "min_image_size": 100}, ("pixel_mask",),
        writer="AriaProcessor", holds={"size_conversion": {490: 5}},
    ),
}  # fmt: skip
if hasattr(transformers, "HYV4VLConfig"):  # since 5.24
    LATEST["hy-v4-vl"] = Seeing(
        config(
            "HYV4VLConfig",
            {
                "num_hidden_layers": 4, "q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16,
                "v_head_dim": 20, "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 3,
                "moe_intermediate_size": 24, "index_n_heads": 16, "index_head_dim": 24, "index_topk": 12, "swiglu_limit": 0.7,
                "hc_mult": 3, "hc_magnitude": 1.7, "indexer_types": ["full", "full", "shared", "full"],
                "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
                "rope_parameters": {**MROPE, "mrope_section": [3, 3, 2]},
            },
            {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4,
                "max_image_size": 24, "out_hidden_size": 48,
            }, "<|image_pad|>",
        ),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "HYV4VLImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}}, ("image_grid_thw",), writer="HYV4VLProcessor",
    )  # fmt: skip
