"""Small models that see, of which transformers has the parts. For tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from joined_parts import MergedQwen, normed_qwen, with_encoder
from seeing_parts import IDS, MROPE, QWEN, TEXT, Seeing, config

BOTH = "HyperCLOVAXVisionV2Config"
"""Of any encoder and any decoder."""
OLD_QWEN = {"depth": 2, "embed_dim": 32, "hidden_size": 48, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2}
OLD = {**OLD_QWEN, "model_type": "qwen2_vl_vision"}
WINDOWS = QWEN | {"fullatt_block_indexes": [1], "window_size": 16, "model_type": "qwen2_5_vl_vision"}
READS: tuple[str, dict[str, Any]] = (
    "Qwen2VLImageProcessorPil", {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}}
)  # fmt: skip
GRID = ("image_grid_thw",)
PAD, MARKER = "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>"
LLM = (("model.", "llm.model."), ("lm_head.", "llm.lm_head."))
"""Prefixes of a decoder's tensors -> those of authors."""
LANGUAGE = (("model.", "language_model.model."), ("lm_head.", "language_model.lm_head."))


def spell_config(name: str, kind: str, text: str = "text_config", **more: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """config.json of the authors: both parts, and these keys. text: the key of the text part."""
    return lambda said: {
        "architectures": [name], "model_type": kind, "vision_config": said["vision_config"], "tie_word_embeddings": False,
        text: said["text_config"], **more,
    }  # fmt: skip


def hunyuan_ocr(said: dict[str, Any]) -> dict[str, Any]:
    """config.json of HunyuanOCR: keys of the text part outside, the older names of rotary settings."""
    text = dict(said["text_config"])
    rope = text.pop("rope_parameters")
    return {
        **text, "architectures": ["HunYuanVLForConditionalGeneration"], "model_type": "hunyuan_vl", "rope_theta": 1e4,
        "attention_head_dim": text.pop("head_dim"), "image_token_id": said["image_token_id"], "tie_word_embeddings": True,
        "vision_config": said["vision_config"],
        "rope_scaling": {
            "alpha": rope["alpha"], "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "type": "xdrope", "xdrope_section": rope["mrope_section"],
        },
    }  # fmt: skip


JOINED: dict[str, Seeing] = {
    **{
        name: Seeing(
            lambda sections=sections: transformers.HunYuanVLConfig(
                text_config={
                    **TEXT, "rope_parameters": {
                        "rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0, "mrope_section": sections
                    },
                },
                vision_config={
                    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                    "patch_size": 4, "max_image_size": 24,
                },
                image_token_id=IDS[PAD], tie_word_embeddings=True,
            ),
            PAD, MARKER, "HunYuanVLImageProcessorPil",
            {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}}, GRID, writer="HunYuanVLProcessor",
            holds={"cat_extra_token": True}, published=hunyuan_ocr,
        )
        for name, sections in (("hunyuan-vl", [2, 2, 2, 2]), ("hunyuan-vl-odd", [1, 3, 2, 2]), ("hunyuan-vl-3", [3, 3, 2]))
    },
    "hyperclovax-vision": Seeing(
        config(
            BOTH,
            {
                "model_type": "hyperclovax", "embedding_multiplier": 2.0, "residual_multiplier": 0.7, "logits_scaling": 1.5,
                "attention_multiplier": 0.2,
            },
            WINDOWS | {"out_hidden_size": 40}, PAD,
        ),
        PAD, MARKER, *READS, GRID, published=spell_config("HCXVisionV2ForCausalLM", "vlm", image_token_id=IDS[PAD]),
    ),
    "opencua": Seeing(
        config(BOTH, {"model_type": "qwen2"}, WINDOWS, PAD), PAD, PAD, *READS, GRID,
        published=spell_config("OpenCUAForConditionalGeneration", "opencua", media_placeholder_token_id=IDS[PAD]),
        build=with_encoder(transformers.Qwen2ForCausalLM, MergedQwen), renamed=(("eye.visual.", "vision_tower."), *LANGUAGE),
    ),
    "sarashina2-vision": Seeing(
        config(BOTH, {"model_type": "llama"}, OLD, PAD), PAD, PAD, *READS, GRID,
        published=spell_config("Sarashina2VisionForCausalLM", "sarashina2_vision", image_token_index=IDS[PAD]),
        build=with_encoder(transformers.LlamaForCausalLM, normed_qwen),
        renamed=(("eye.visual.", "visual."), ("eye.after.", "norm."), *LLM),
    ),
    "points-1.5": Seeing(
        config(BOTH, {"model_type": "qwen2"}, OLD, PAD), PAD, MARKER, *READS, GRID,
        published=spell_config("POINTSV15ChatModel", "pointsv1.5_chat", "llm_config"),
        build=with_encoder(transformers.Qwen2ForCausalLM, MergedQwen),
        renamed=(("eye.visual.merger.", "vision_projector."), ("eye.visual.", "vision_encoder."), *LLM),
    ),
    "tarsier2": Seeing(
        config("Qwen2VLConfig", {"rope_parameters": {**MROPE, "mrope_section": [2, 2, 2]}, "head_dim": 12}, OLD_QWEN, PAD),
        PAD, MARKER, *READS, GRID,
        published=spell_config("Tarsier2ForConditionalGeneration", "llava", image_token_index=IDS[PAD]),
        renamed=(("model.language_model.", "language_model.model."), ("visual.", "vision_tower."), *LANGUAGE),
        said=lambda said: {**said, "size": {"min_pixels": 256, "max_pixels": 4096}},
    ),
}  # fmt: skip
