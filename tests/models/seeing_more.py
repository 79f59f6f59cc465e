"""More small models that see. For tests."""

from __future__ import annotations

from typing import Any

from seeing_parts import CLIP, GLM, GLM_ROPE, INTERNVL, MROPE, PINS, PIXTRAL, QWEN, SIGLIP, TILED, Seeing, config

SIGLIP_2 = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_patches": 25,
    "patch_size": 4, "model_type": "siglip2_vision_model", "vision_use_head": False,
}  # fmt: skip
MOON = {
    "patch_size": 4, "pos_emb_height": 6, "pos_emb_width": 6, "num_attention_heads": 2, "num_hidden_layers": 2,
    "hidden_size": 32, "intermediate_size": 40,
}  # fmt: skip
LATENT = {
    "num_hidden_layers": 3, "num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16, "v_head_dim": 20, "first_k_dense_replace": 1, "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
    "num_experts_per_tok": 3, "moe_intermediate_size": 24,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 4.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
}  # fmt: skip


def kimi_vl(said: dict[str, Any]) -> dict[str, Any]:
    """Kimi K2.5's encoder is Kimi-VL's, and its files have names of their own for sizes."""
    eye = said["vision_config"]
    names = {"pos_emb_height": "init_pos_emb_height", "pos_emb_width": "init_pos_emb_width"}
    kept = {names.get(k, k): v for k, v in eye.items() if k in MOON or k == "merge_kernel_size"}
    return {
        "architectures": ["KimiVLForConditionalGeneration"], "model_type": "kimi_vl", "text_config": said["text_config"],
        "vision_config": {**kept, "model_type": "moonvit"}, "media_placeholder_token_id": said["image_token_id"],
    }  # fmt: skip


def internvl_chat(said: dict[str, Any]) -> dict[str, Any]:
    """Qianfan-OCR is InternVL by its authors' names of tensors."""
    eye = said["vision_config"]
    return {
        "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "llm_config": said["text_config"],
        "vision_config": {
            "model_type": "intern_vit_6b", "image_size": eye["image_size"][0], "patch_size": eye["patch_size"][0],
            "qkv_bias": eye["attention_bias"], "qk_normalization": eye["use_qk_norm"],
            **{k: eye[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")},
            "norm_type": eye["norm_type"],
        },
        "downsample_ratio": said["downsample_ratio"], "select_layer": -1, "ps_version": "v2", "dynamic_image_size": True,
        "force_image_size": eye["image_size"][0], "max_dynamic_patch": 4, "min_dynamic_patch": 1, "use_thumbnail": True,
    }  # fmt: skip


MORE: dict[str, Seeing] = {
    "deepseek-vl": Seeing(
        config("DeepseekVLConfig", {"model_type": "llama"}, SIGLIP | {"image_size": 28, "patch_size": 7}, "<image>"),
        "<image>", "<image>", "DeepseekVLImageProcessorPil", {"size": {"height": 28, "width": 28}},
        writer="DeepseekVLProcessor", holds={"num_image_tokens": 16},
    ),
    "deepseek-vl-hybrid": Seeing(
        config(
            "DeepseekVLHybridConfig", {"model_type": "llama"}, SIGLIP | {"image_size": 28, "patch_size": 7}, "<image>",
            high_res_vision_config={
                "hidden_size": 32, "output_channels": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 56,
                "patch_size": 7, "window_size": 3, "global_attn_indexes": [1], "mlp_dim": 48,
            },
        ),
        "<image>", "<image>", "DeepseekVLHybridImageProcessorPil",
        {"size": {"height": 28, "width": 28}, "high_res_size": {"height": 56, "width": 56}, "high_res_image_mean": [0.4] * 3},
        ("high_res_pixel_values",), writer="DeepseekVLHybridProcessor", holds={"num_image_tokens": 16},
    ),
    "glm4.6v": Seeing(
        config(
            "Glm46VConfig", {"model_type": "glm4v_text", "rope_parameters": GLM_ROPE, "head_dim": 12},
            {**GLM, "model_type": "glm4v_vision"}, "<|image_pad|>",
        ),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "Glm46VImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 8192}}, ("image_grid_thw",),
    ),
    "qianfan-ocr": Seeing(
        config("QianfanOCRConfig", {"model_type": "qwen3"}, INTERNVL, "<IMG_CONTEXT>"), "<IMG_CONTEXT>", "<image>\n",
        "GotOcr2ImageProcessorPil", {**TILED, "crop_to_patches": True, "max_patches": 4}, writer="QianfanOCRProcessor",
        holds={"start_image_token": "<img>", "end_image_token": "</img>", "image_seq_length": 4},
    ),
    "internvl-chat": Seeing(
        config(
            "QianfanOCRConfig", {"model_type": "qwen2"}, INTERNVL | {"attention_bias": False, "use_qk_norm": True},
            "<IMG_CONTEXT>",
        ),
        "<IMG_CONTEXT>", "<image>\n", "GotOcr2ImageProcessorPil", {**TILED, "crop_to_patches": True, "max_patches": 4},
        writer="QianfanOCRProcessor",
        holds={"start_image_token": "<img>", "end_image_token": "</img>", "image_seq_length": 4}, published=internvl_chat,
    ),
    "exaone4.5": Seeing(
        config("Exaone4_5_Config", {"model_type": "exaone4", "sliding_window": 20, "sliding_window_pattern": 2},
                QWEN | {"fullatt_block_indexes": [1], "window_size": 16, "num_key_value_heads": 1}, "<|image_pad|>"),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "Qwen2VLImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}}, ("image_grid_thw",),
    ),
    "glm-ocr": Seeing(
        config(
            "GlmOcrConfig",
            {"model_type": "glm_ocr_text", "rope_parameters": {**MROPE, "partial_rotary_factor": 1.0}}, GLM, "<|image_pad|>",
        ),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "Glm4vImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 8192}}, ("image_grid_thw",),
    ),
    "lfm2-vl": Seeing(
        config(
            "Lfm2VlConfig",
            {
                "model_type": "lfm2", "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
                "max_position_embeddings": 1024,
            },
            SIGLIP_2, "<image>", projector_hidden_size=40,
        ),
        "<image>", "<image>", "Lfm2VlImageProcessor",
        {
            "encoder_patch_size": 4, "tile_size": 16, "min_image_tokens": 2, "max_image_tokens": 8, "min_tiles": 2,
            "max_tiles": 4, "return_row_col_info": True,
        },
        ("pixel_attention_mask", "spatial_shapes"), writer="Lfm2VlProcessor",
        holds={
            "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>",
            "image_thumbnail_token": "<|img_thumbnail|>",
        },
    ),
    "kimi-k2.5": Seeing(
        config("Kimi_K25Config", LATENT | {"model_type": "deepseek_v3"}, MOON, "<|image_pad|>", projection_hidden_size=32),
        "<|image_pad|>", "<|image_pad|>", "Kimi_K25ImageProcessor",
        {"patch_size": 4, "max_patches": 64, "size": {"max_height": 12, "max_width": 12}}, ("image_grid_thw",),
        writer="Kimi_K25Processor",
    ),
    "kimi-vl": Seeing(
        config("Kimi_K25Config", LATENT | {"model_type": "deepseek_v3"}, MOON, "<|image_pad|>", projection_hidden_size=32),
        "<|image_pad|>", "<|image_pad|>", "Kimi_K25ImageProcessor",
        {"patch_size": 4, "max_patches": 64, "size": {"max_height": 512, "max_width": 512}}, ("image_grid_thw",),
        published=kimi_vl, renamed=(("mm_projector.proj.0.", "multi_modal_projector.linear_1."),
                                    ("mm_projector.proj.2.", "multi_modal_projector.linear_2."),
                                    ("model.mm_projector.", "multi_modal_projector.")),
        said=lambda said: {
            "patch_size": 4, "in_token_limit": 64, "pad_input": True, "merge_kernel_size": [2, 2], "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
        },
    ),
    "mistral-small-4": Seeing(
        config(
            "Mistral3Config", LATENT | {"rope_parameters": YARN, "model_type": "mistral4", "head_dim": 40}, PIXTRAL, "[IMG]"
        ),
        "[IMG]", "[IMG]", "PixtralImageProcessorPil", {"size": {"longest_edge": 56}, "patch_size": {"height": 14, "width": 14}},
        ("image_sizes",),
    ),
    "llava-next-video": Seeing(
        config("LlavaNextVideoConfig", {"model_type": "llama"}, CLIP, "<image>", image_grid_pinpoints=PINS),
        "<image>", "<image>\n", "LlavaNextImageProcessorPil",
        {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}, "image_grid_pinpoints": PINS},
        ("image_sizes",), writer="LlavaNextVideoProcessor",
        holds={"patch_size": 7, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
    ),
    "minicpm-v4.6": Seeing(
        config(
            "MiniCPMV4_6Config",
            {
                "model_type": "qwen3_5_text", "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                "linear_key_head_dim": 24, "linear_value_head_dim": 16, "max_position_embeddings": 1024,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
            },
            {**SIGLIP, "image_size": 24, "num_hidden_layers": 3, "model_type": "minicpmv4_6_vision"}, "<|image_pad|>",
            insert_layer_id=1,
        ),
        "<|image_pad|>", "<|image_pad|>", "MiniCPMV4_6ImageProcessorPil",
        {"patch_size": 4, "scale_resolution": 32, "max_slice_nums": 4}, ("target_sizes",), writer="MiniCPMV4_6Processor",
        holds={
            "slice_mode": True, "image_start_token": "<image>", "image_end_token": "</image>", "slice_start_token": "<slice>",
            "slice_end_token": "</slice>",
        },
    ),
    "llama4": Seeing(
        config(
            "Llama4Config",
            {
                "num_hidden_layers": 5, "intermediate_size": 24, "intermediate_size_mlp": 80, "num_local_experts": 4,
                "attention_chunk_size": 12, "floor_scale": 8, "interleave_moe_layer_step": 2, "model_type": "llama4_text",
                "max_position_embeddings": 1024,
            },
            {
                "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
                "patch_size": 7, "vision_output_dim": 24, "projector_input_dim": 24, "projector_output_dim": 24,
            }, "<|image_pad|>",
        ),
        "<|image_pad|>", "<|image|>", "Llama4ImageProcessor", {**TILED, "max_patches": 4}, writer="Llama4Processor",
        holds={"patch_size": 7, "downsample_ratio": 4},
    ),
}  # fmt: skip
