"""Small models that see, of the families added last. For tests."""

from __future__ import annotations

from typing import Any

from dots_ocr import DotsConfig, DotsOCRForCausalLM
from seeing_parts import CLIP, HALVES, IDS, SIGLIP, TEXT, TILED, Seeing, config

SAM = {
    "hidden_size": 32, "output_channels": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 64,
    "patch_size": 4, "window_size": 6, "global_attn_indexes": [1], "mlp_dim": 48,
}  # fmt: skip
DOTS = {
    "embed_dim": 32, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2,
    "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 1, "rms_norm_eps": 1e-5, "use_bias": False,
    "model_type": "dots_vit", "post_norm": True,
}  # fmt: skip
OVIS = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7, "vocab_size": 44, "num_visual_indicator_tokens": 5,
}  # fmt: skip
OVIS_TOKENS = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
ROUTED = {
    "mlp_layer_types": ["dense", "sparse"], "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "n_shared_experts": 1, "max_position_embeddings": 2048, "num_key_value_heads": 4,
}  # fmt: skip


def deepseek_ocr(said: dict[str, Any]) -> dict[str, Any]:
    """Unlimited-OCR with a large window is DeepSeek-OCR, whose authors keep the sizes of the text part twice."""
    text, eye, reads = said["text_config"], said["vision_config"]["sam_config"], said["vision_config"]["encoder_config"]
    keys = (
        "hidden_size", "intermediate_size", "max_position_embeddings", "moe_intermediate_size", "n_routed_experts",
        "n_shared_experts", "num_attention_heads", "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads",
        "topk_method", "vocab_size", "eos_token_id",
    )  # fmt: skip
    sizes = {**{key: text[key] for key in keys}, "first_k_dense_replace": 1, "use_mla": False, "v_head_dim": 0}
    return {
        "architectures": ["DeepseekOCRForCausalLM"], "model_type": "deepseekocr", "language_config": sizes, **sizes,
        "projector_config": {"input_dim": 64, "n_embed": text["hidden_size"], "projector_type": "linear"},
        "vision_config": {
            "image_size": eye["image_size"], "mlp_ratio": 3.7362, "model_name": "deeplip_b_l",
            "width": {
                "clip-l-14-224": {"heads": 2, "image_size": reads["image_size"], "layers": 2, "patch_size": 14, "width": 32},
                "sam_vit_b": {
                    "downsample_channels": [24, 32], "global_attn_indexes": [1], "heads": 2, "layers": 3, "width": 32,
                    "patch_size": 2, "output_channels": 16,
                },
            },
        },
    }  # fmt: skip


NEWER: dict[str, Seeing] = {
    "paligemma": Seeing(
        config("PaliGemmaConfig", {"model_type": "gemma"}, SIGLIP | {"image_size": 28, "patch_size": 7}, "<image>",
                projection_dim=48),
        "<image>", "<image>", "SiglipImageProcessorPil", {"size": {"height": 28, "width": 28}, **HALVES},
    ),
    "paligemma2": Seeing(
        config("PaliGemmaConfig", {"model_type": "gemma2", "sliding_window": 400, "query_pre_attn_scalar": 24},
                SIGLIP | {"image_size": 28, "patch_size": 7}, "<image>", projection_dim=48),
        "<image>", "<image>", "SiglipImageProcessorPil", {"size": {"height": 28, "width": 28}, **HALVES},
    ),
    "got-ocr2": Seeing(
        config("GotOcr2Config", {"model_type": "qwen2"}, SAM, "<|image_pad|>"), "<|image_pad|>", "<|image_pad|>",
        "GotOcr2ImageProcessorPil", {"size": {"height": 64, "width": 64}},
    ),
    "minicpm-ocr": Seeing(
        config(
            "MiniCPMOcrConfig",
            {
                "model_type": "qwen3_5_text", "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                "linear_key_head_dim": 24, "linear_value_head_dim": 16, "max_position_embeddings": 1024,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
            },
            {**SIGLIP, "image_size": 24, "num_hidden_layers": 3, "model_type": "minicpm_ocr_vision"}, "<|image_pad|>",
            insert_layer_id=1,
        ),
        "<|image_pad|>", "<|image_pad|>", "MiniCPMV4_6ImageProcessorPil",
        {"patch_size": 4, "scale_resolution": 32, "max_slice_nums": 4, "downsample_mode": "4x"}, ("target_sizes",),
        writer="MiniCPMOcrProcessor",
        holds={
            "slice_mode": True, "image_start_token": "<image>", "image_end_token": "</image>", "slice_start_token": "<slice>",
            "slice_end_token": "</slice>",
        },
    ),
    "dots-ocr": Seeing(
        lambda: DotsConfig(
            **TEXT, vision_config=DOTS, image_token_id=IDS["<|image_pad|>"], architectures=["DotsOCRForCausalLM"],
            attention_bias=True, tie_word_embeddings=False,
        ),
        "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "Qwen2VLImageProcessorPil",
        {
            "patch_size": 4, "temporal_patch_size": 1, "size": {"shortest_edge": 256, "longest_edge": 4096},
        },
        ("image_grid_thw",), build=DotsOCRForCausalLM,
    ),
    "deepseek-ocr": Seeing(
        config(
            "UnlimitedOcrConfig", ROUTED | {"sliding_window": 4096},
            {
                "sam_config": SAM | {"patch_size": 2, "window_size": 14, "downsample_channels": [24, 32], "mlp_dim": 128},
                "encoder_config": {
                    "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
                    "image_size": 112, "patch_size": 14,
                },
            }, "<image>",
        ),
        "<image>", "<image>", "RoundedTiles", {"size": {"height": 64, "width": 64}, "tile_size": 40},
        ("num_local_patches",), published=deepseek_ocr,
        said=lambda said: {
            "candidate_resolutions": [[64, 64]], "downsample_ratio": 4, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
            "image_token": "<image>", "normalize": True, "patch_size": 2,
        },
    ),
    "deepseek-ocr2": Seeing(
        config(
            "DeepseekOcr2Config",
            ROUTED,
            {
                "sam_config": SAM | {
                    "image_size": 128, "patch_size": 2, "window_size": 14, "mlp_ratio": 2.0, "mlp_dim": None,
                    "downsample_channels": [24, 32],
                },
                "encoder_config": {
                    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
                    "num_key_value_heads": 2,
                },
            }, "<image>",
        ),
        "<image>", "<image>", "DeepseekOcr2ImageProcessorPil", {"size": {"height": 128, "width": 128}, "tile_size": 96},
        ("num_local_patches",), writer="DeepseekOcr2Processor", holds={"patch_size": 2, "downsample_ratio": 4},
    ),
    "ovis2": Seeing(
        config("Ovis2Config", {"model_type": "qwen2"}, OVIS | {"hidden_stride": 2, "qkv_bias": True}, "<|image|>",
               hidden_size=48, vocab_size=288, visual_indicator_token_ids=[IDS[name] for name in OVIS_TOKENS]),
        "<|image|>", "<image>", "Ovis2ImageProcessorPil",
        {**TILED, "crop_to_patches": True, "max_patches": 6}, writer="Ovis2Processor", holds={"image_seq_length": 4},
    ),
    "vipllava": Seeing(
        config("VipLlavaConfig", {"model_type": "llama"}, CLIP, "<image>", vision_feature_layer=[-2, 1]),
        "<image>", "<image>\n", "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}},
    ),
}  # fmt: skip
