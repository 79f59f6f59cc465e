"""Small models that see, of families whose encoders read patches of any image size. For tests."""

from __future__ import annotations

from typing import Any

from deepseek_vl2 import RECTANGLES, DeepseekVL2, Vl2Config
from deepseek_vl2 import spell_config as published_vl2
from keye import Keye, Keye15, spell_config
from seeing_parts import HALVES, IDS, MROPE, QWEN, SIGLIP, TEXT, Seeing, config

SHOWN = ("<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>")
PIXELS = {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}}
COSMOS_VISION = {
    **{key: value for key, value in SIGLIP.items() if key not in ("image_size", "vision_use_head")},
    "model_type": "cosmos3_edge_vision", "num_patches": 36,
}  # fmt: skip

RADIO = {
    "model_type": "radio", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 1.5,
    "patch_size": 4, "max_img_size": 32, "num_cls_tokens": 2, "num_registers": 3, "video_temporal_patch_size": 2,
    "layer_norm_eps": 1e-5,
}  # fmt: skip
NEMOTRON_H = {
    "model_type": "nemotron_h", "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16,
    "conv_kernel": 4, "layers_block_type": ["mamba", "attention", "mlp", "mamba"], "num_hidden_layers": 4, "chunk_size": 16,
}  # fmt: skip


def nano_vl(said: dict[str, Any]) -> dict[str, Any]:
    """As NVIDIA publishes Nemotron Nano VL: sizes of the encoder by a model of timm and by its teachers."""
    eye = {key: v for key, v in said["vision_config"].items() if key not in ("num_cls_tokens", "num_registers", "max_img_size")}
    args = {
        "model": "vit_huge_patch16_224", "cpe_max_size": 32, "register_multiple": 5,
        "teachers": [{"name": "clip"}, {"name": "sam"}, {"name": "clip"}],
    }  # fmt: skip
    return {
        "architectures": ["NemotronH_Nano_VL_V2"], "model_type": "NemotronH_Nano_VL_V2", "llm_config": said["text_config"],
        "downsample_ratio": 0.5, "force_image_size": 16, "ps_version": "v2", "projector_hidden_size": 40, "vit_hidden_size": 32,
        "vision_config": {**eye, "args": args},
    }  # fmt: skip


def nano_tiles(said: dict[str, Any]) -> dict[str, Any]:
    return {
        "image_size": 16, "max_num_tiles": 4, "norm_mean": said["image_mean"], "norm_std": said["image_std"],
        "use_thumbnail": True,
    }  # fmt: skip


NEMOTRON = config(
    "NemotronH_Omni_Reasoning_V3_Config", NEMOTRON_H, RADIO, "<image>", projector_hidden_size=40, vision_hidden_size=32,
    audio_config=None,
)  # fmt: skip
PACKED: dict[str, Seeing] = {
    "cosmos3": Seeing(
        config(
            "Cosmos3OmniConfig", {"rope_parameters": MROPE, "model_type": "qwen3_vl_text"},
            QWEN | {"deepstack_visual_indexes": [0, 2], "num_position_embeddings": 36, "model_type": "qwen3_vl_vision"},
            "<|image_pad|>",
        ),
        *SHOWN, "Qwen2VLImageProcessorPil", {**PIXELS, **HALVES}, ("image_grid_thw",),
    ),
    "cosmos3-edge": Seeing(
        config(
            "Cosmos3EdgeConfig", {"rope_parameters": {**MROPE, "mrope_section": [4, 2, 2]}, "hidden_act": "relu2"},
            COSMOS_VISION, "<|image_pad|>", projector_hidden_size=56,
        ),
        *SHOWN, "Cosmos3EdgeImageProcessorPil", PIXELS, ("image_grid_thw",), writer="Cosmos3EdgeProcessor",
    ),
    "nemotron-omni": Seeing(
        NEMOTRON, "<image>", "<image>", "NemotronH_Omni_Reasoning_V3ImageProcessor",
        {"patch_size": 4, "min_num_patches": 40, "max_num_patches": 150}, ("image_grid_hw",),
        writer="NemotronH_Omni_Reasoning_V3Processor", holds={"image_start_token": "<img>", "image_end_token": "</img>"},
        engine={"mamba_block_size": 32, "num_gpu_blocks_override": 200},
    ),
    "nemotron-nano-vl": Seeing(
        NEMOTRON, "<image>", "<image>", "RadioTiles",
        {"size": {"height": 16, "width": 16}, "crop_to_patches": True, "max_patches": 4}, ("image_grid_hw",), published=nano_vl,
        said=nano_tiles, engine={"mamba_block_size": 32, "num_gpu_blocks_override": 200},
    ),
    **{
        name: Seeing(
            config(
                "PaddleOCRVLConfig",
                {"head_dim": 12, "rope_parameters": {**MROPE, "mrope_section": [2, 2, 2]}, "rms_norm_eps": 1e-6},
                {**SIGLIP, "image_size": 24, "model_type": "paddleocr_vl_vision"}, "<|image_pad|>",
            ),
            *SHOWN, "PaddleOCRVLImageProcessorPil", PIXELS, ("image_grid_thw",), writer="PaddleOCRVLProcessor", build=build,
            published=lambda said, made=made: spell_config(said, made),
        )
        for name, build, made in (
            ("keye", Keye, "KeyeForConditionalGeneration"), ("keye-1.5", Keye15, "KeyeVL1_5ForConditionalGeneration"),
        )
    },
    "step-3.7": Seeing(
        config(
            "Step3p7Config",
            {
                "num_hidden_layers": 3, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                "share_expert_dim": 32, "sliding_window": 40, "num_sliding_attention_heads": 6, "moe_layers_enum": "1,2",
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "max_position_embeddings": 2048,
            },
            {
                "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56, "patch_size": 7,
                "mlp_ratio": 1.5,
            }, "<image>", projector_bias=True,
        ),
        "<image>", "<image>", "Step3p7ImageProcessor",
        {"size": {"height": 56, "width": 56}, "patch_size": 28, "max_image_size": 84, "vision_patch_size": 7},
        ("num_local_patches",), writer="Step3p7Processor",
        holds={"image_feature_placeholder": 4 * "<image>", "patch_feature_placeholder": "<image>"},
        engine={"max_model_len": 1024, "num_gpu_blocks_override": 200},
    ),
    "lfm3-vl": Seeing(
        config(
            "Lfm3VlConfig",
            {
                "model_type": "lfm3", "num_hidden_layers": 4, "sliding_window": 40,
                "layer_types": ["conv", "sliding_attention", "full_attention", "conv"],
            },
            {
                "model_type": "lfm3_vl_vision", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
                "num_attention_heads": 4, "num_key_value_heads": 2, "patch_size": 4,
            }, "<|image_pad|>", projector_hidden_size=56,
        ),
        *SHOWN, "Qwen2VLImageProcessorPil", {**PIXELS, **HALVES}, ("image_grid_thw",),
        engine={"mamba_block_size": 32, "num_gpu_blocks_override": 200},
    ),
    "ernie4.5-vl": Seeing(
        config(
            "Ernie4_5_VLMoeConfig",
            {
                "num_hidden_layers": 3, "head_dim": 12, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": [24, 16],
                "moe_num_shared_experts": 2, "mlp_layer_types": ["dense", "sparse", "sparse"],
                "rope_parameters": {**MROPE, "mrope_section": [2, 2, 2]},
            },
            {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4}, "<|image_pad|>",
            image_start_token_id=IDS["<|vision_start|>"], image_end_token_id=IDS["<|vision_end|>"],
            video_start_token_id=IDS["[IMG]"], video_end_token_id=IDS["[IMG_END]"],
        ),
        *SHOWN, "Ernie4_5_VLMoeImageProcessorPil", PIXELS, ("image_grid_thw",), writer="Ernie4_5_VLMoeProcessor",
    ),
    "deepseek-vl2": Seeing(
        lambda: Vl2Config(
            **{key: value for key, value in TEXT.items() if key != "head_dim"}
            | {"max_position_embeddings": 1024, "num_key_value_heads": 4}, q_lora_rank=None, kv_lora_rank=32,
            qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, first_k_dense_replace=1, n_routed_experts=6,
            num_experts_per_tok=2, moe_intermediate_size=24, n_shared_experts=1, image_token_id=IDS["<image>"],
            tie_word_embeddings=False, vision_config={"patch_size": 4},
        ),
        "<image>", "<image>", "FittedTiles",
        {"candidate_resolutions": RECTANGLES, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "patch_size": 4},
        ("tilings",), published=published_vl2, build=DeepseekVL2, engine={"max_model_len": 640, "num_gpu_blocks_override": 160},
    ),
}  # fmt: skip
