"""Small models that see, of the families added last. For tests."""

from __future__ import annotations

from seeing_parts import CLIP, SIGLIP, Seeing, config

HALVES = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
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
    "vipllava": Seeing(
        config("VipLlavaConfig", {"model_type": "llama"}, CLIP, "<image>", vision_feature_layer=[-2, 1]),
        "<image>", "<image>\n", "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}},
    ),
}  # fmt: skip
