"""Small models that see through learned queries or LLaVA's square. For tests."""

from __future__ import annotations

import transformers
from seeing_parts import CLIP, IDEFICS, IDS, TEXT, Seeing, config

BLIP = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7,
}  # fmt: skip
PERCEIVER = {
    "hidden_size": 48, "rms_norm_eps": 1e-5, "resampler_n_latents": 5, "resampler_depth": 2, "resampler_n_heads": 4,
    "resampler_head_dim": 10, "num_key_value_heads": 2,
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
