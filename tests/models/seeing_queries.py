"""Small models that see through learned queries or LLaVA's square. For tests."""

from __future__ import annotations

import transformers
from seeing_parts import CLIP, IDS, TEXT, Seeing, config

BLIP = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7,
}  # fmt: skip

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
}  # fmt: skip
