"""Small models that see through learned queries or LLaVA's square. For tests."""

from __future__ import annotations

from typing import Any

import transformers
from ovis2_5 import Ovis2_5, OvisConfig
from perception_encoder import build as build_perception
from seeing_parts import CLIP, HALVES, IDEFICS, IDS, MROPE, SIGLIP, TEXT, Seeing, config

BLIP = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7,
}  # fmt: skip
PERCEIVER = {
    "hidden_size": 48, "rms_norm_eps": 1e-5, "resampler_n_latents": 5, "resampler_depth": 2, "resampler_n_heads": 4,
    "resampler_head_dim": 10, "num_key_value_heads": 2,
}  # fmt: skip

NAVIT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 24,
    "patch_size": 4, "num_patches": -1, "hidden_stride": 2, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh",
    "model_type": "siglip2_navit", "temporal_patch_size": 1, "window_size": 112, "fullatt_block_indexes": None,
    "use_rope": True, "preserve_original_pe": True,
}  # fmt: skip
OVIS_LIMITS = {"min_pixels": 256, "max_pixels": 4096}
OVIS_MARKS = [IDS["<|image_pad|>"], IDS["<|vision_start|>"], IDS["<|vision_end|>"]]


def ovis2_5(said: dict[str, Any]) -> dict[str, Any]:
    """Its decoder's settings are a part of those of the whole."""
    keys = ("architectures", "vit_config", "visual_vocab_size", "hidden_size")
    text = {k: v for k, v in said.items() if k not in ("architectures", "vit_config", "visual_vocab_size", "marks")}
    return {**{k: said[k] for k in keys}, "model_type": "ovis2_5", "llm_config": {**text, "model_type": "qwen3"}}


CANVAS = ("</image>", "<slice>", "</slice>")
"""Tokens behind those of all families."""
CANVAS_IDS = {
    "image_start_id": IDS["<image>"], "newline_id": 198,
    **{key: 256 + len(IDS) + i for i, key in enumerate(("image_end_id", "slice_start_id", "slice_end_id"))},
}  # fmt: skip


PE = {
    "embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 1.5, "patch_size": 7, "img_size": [28, 28], "class_token": True,
    "rope_grid_offset": 1.0, "ref_feat_shape": [4, 4],
}  # fmt: skip


CLASSLESS = {"class_token": False, "ref_feat_shape": [6, 6]}


def perception_lm(args: dict[str, Any]) -> Any:
    def make() -> Any:
        eye = transformers.TimmWrapperConfig(architecture="vit_pe_lang_large_patch14_448", model_args=args)
        return transformers.PerceptionLMConfig(
            text_config={**TEXT, "model_type": "llama"}, vision_config=eye, image_token_id=IDS["<image>"],
            video_token_id=IDS["<|video_pad|>"], vision_use_cls_token=args["class_token"], projector_pooling_ratio=2,
        )  # fmt: skip

    return make


QUERIES: dict[str, Seeing] = {
    "video-llava": Seeing(
        config("VideoLlavaConfig", {"model_type": "llama"}, CLIP, "<image>"), "<image>", "<image>\n", "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}, writer="VideoLlavaProcessor",
        holds={"patch_size": 7, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
    ),
    "blip-2": Seeing(
        lambda: transformers.Blip2Config(
            text_config={
                **{key: value for key, value in TEXT.items() if key != "head_dim"}, "model_type": "opt", "ffn_dim": 72,
                "word_embed_proj_dim": TEXT["hidden_size"],
            },
            vision_config=BLIP, image_token_index=IDS["<image>"], num_query_tokens=5,
            qformer_config={
                "hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40,
                "encoder_hidden_size": 32,
            },
        ),
        "<image>", "<image>", "BlipImageProcessorPil", {"size": {"height": 28, "width": 28}},
    ),
    "minicpm-v4.7": Seeing(
        config(
            "MiniCPMV4_7Config",
            {
                "model_type": "qwen3_5_text", "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                "linear_key_head_dim": 24, "linear_value_head_dim": 16, "max_position_embeddings": 1024, "vocab_size": 304,
                "rope_parameters": {**MROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
            },
            {**SIGLIP, "image_size": 24, "num_hidden_layers": 3, "model_type": "minicpmv4_7_vision"}, "<|image_pad|>",
            insert_layer_id=1, **CANVAS_IDS,
        ),
        "<|image_pad|>", "<|image_pad|>", "MiniCPMV4_6ImageProcessorPil",
        {"patch_size": 4, "scale_resolution": 32, "max_slice_nums": 4}, ("target_sizes",), writer="MiniCPMV4_7Processor",
        holds={
            "slice_mode": True, "image_start_token": "<image>", "image_end_token": "</image>", "slice_start_token": "<slice>",
            "slice_end_token": "</slice>",
        },
        engine={"max_model_len": 640, "mamba_block_size": 32, "num_gpu_blocks_override": 200}, tokens=CANVAS,
    ),
    **{
        name: Seeing(
            perception_lm(args), "<image>", "<|image|>", "PerceptionLMImageProcessor", {"tile_size": 28, "max_num_tiles": 5},
            build=build_perception, writer="PerceptionLMProcessor", holds={"patch_size": 7, "pooling_ratio": 2},
        )
        for name, args in (("perception-lm", PE), ("perception-lm-classless", PE | CLASSLESS))
    },
    "ovis2.5": Seeing(
        lambda: OvisConfig(
            **TEXT, vit_config=NAVIT, visual_vocab_size=44, marks=OVIS_MARKS, architectures=["Ovis2_5"],
            tie_word_embeddings=False,
        ),
        "<|image_pad|>", "<image>", "Qwen2VLImageProcessorPil",
        {"patch_size": 4, "temporal_patch_size": 1, **OVIS_LIMITS, **HALVES}, ("image_grid_thw",),
        published=ovis2_5, build=Ovis2_5, said=lambda said: {**HALVES, **OVIS_LIMITS, "size": {"height": 24, "width": 24}},
        renamed=(("model.", "llm.model."), ("lm_head.", "llm.lm_head.")),
    ),
    "ovis2.6": Seeing(
        lambda: OvisConfig(
            **TEXT, vit_config={**NAVIT, "num_patches": 49}, visual_vocab_size=44, marks=OVIS_MARKS,
            architectures=["Ovis2_6ForCausalLM"], tie_word_embeddings=False,
        ),
        "<|image_pad|>", "<image>", "Qwen2VLImageProcessorPil",
        {"patch_size": 4, "temporal_patch_size": 1, **OVIS_LIMITS, **HALVES}, ("image_grid_thw",),
        published=ovis2_5, build=Ovis2_5, said=lambda said: {**HALVES, **OVIS_LIMITS, "size": {"height": 24, "width": 24}},
        renamed=(("model.", "llm.model."), ("lm_head.", "llm.lm_head.")),
    ),
    "idefics2": Seeing(
        config("Idefics2Config", {"model_type": "mistral", "sliding_window": None}, IDEFICS, "<image>",
               perceiver_config=PERCEIVER),
        "<image>", "<image>", "Idefics2ImageProcessorPil", {"size": {"shortest_edge": 21, "longest_edge": 70}},
        ("pixel_attention_mask",),
    ),
    "idefics2-split": Seeing(
        config("Idefics2Config", {"model_type": "mistral", "sliding_window": None}, IDEFICS, "<image>",
               perceiver_config=PERCEIVER),
        "<image>", "<image>", "Idefics2ImageProcessorPil",
        {"size": {"shortest_edge": 21, "longest_edge": 70}, "do_image_splitting": True}, ("pixel_attention_mask",),
    ),
}  # fmt: skip
