"""Small models that see, of families whose encoders read patches of any image size. For tests."""

from __future__ import annotations

from seeing_parts import HALVES, MROPE, QWEN, SIGLIP, Seeing, config

SHOWN = ("<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>")
PIXELS = {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 4096}}
COSMOS_VISION = {
    **{key: value for key, value in SIGLIP.items() if key not in ("image_size", "vision_use_head")},
    "model_type": "cosmos3_edge_vision", "num_patches": 36,
}  # fmt: skip

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
}  # fmt: skip
