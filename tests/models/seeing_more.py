"""More small models that see. For tests."""

from __future__ import annotations

from typing import Any

from seeing_parts import GLM, INTERNVL, MROPE, QWEN, TILED, Seeing, config

SIGLIP_2 = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_patches": 25,
    "patch_size": 4, "model_type": "siglip2_vision_model", "vision_use_head": False,
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
}  # fmt: skip
