"""What small models that see are made of. For tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import transformers
from zoo import SMALL

NAMES = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<image>", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "<|vision_start|>",
    "<|image_pad|>", "<|vision_end|>", "<start_of_image>", "<image_soft_token>", "<end_of_image>", "<|video_pad|>",
    "<IMG_CONTEXT>", "<fake_token_around_image>", "<global-img>", "<|image>", "<|image|>", "<image|>",
    "<|START_OF_IMG|>", "<|IMG_LINE_BREAK|>", "<|END_OF_IMG|>", "<IMG_START>", "<IMG_GRID>",
    "<IMG_COL>", "<IMG_ROW>", "<IMG_END>", "<image_placeholder>",
    "<|vision_pad|>",
)  # fmt: skip
IDS = {name: 256 + i for i, name in enumerate(NAMES)}
TEXT = {
    **SMALL,
    "vocab_size": 288,
    "max_position_embeddings": 512,
    "head_dim": 16,
    "pad_token_id": 0,
    "eos_token_id": IDS["<|im_end|>"],
    "bos_token_id": 0,
}
TEMPLATE = (
    "{%% for m in messages %%}<|im_start|>{{ m.role }}\n{%% for p in m.content %%}{%% if p.type == 'image' %%}%s"
    "{%% else %%}{{ p.text }}{%% endif %%}{%% endfor %%}<|im_end|>\n{%% endfor %%}"
    "{%% if add_generation_prompt %%}<|im_start|>assistant\n{%% endif %%}"
)
CLIP = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 7, "model_type": "clip_vision_model",
}  # fmt: skip
SIGLIP = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 4, "model_type": "siglip_vision_model", "vision_use_head": False,
}  # fmt: skip
PIXTRAL = {
    "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56,
    "patch_size": 7, "head_dim": 16, "model_type": "pixtral",
}  # fmt: skip

INTERNVL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": [28, 28],
    "patch_size": [7, 7],
}  # fmt: skip
IDEFICS = {**SIGLIP, "image_size": 28, "patch_size": 7, "model_type": "idefics3_vision"}
TILED = {"size": {"height": 28, "width": 28}}
SPLIT = {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}}
PINS = [[28, 56], [56, 28], [56, 56], [28, 84]]
GLM = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 48, "patch_size": 4,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "image_size": 24,
}  # fmt: skip
GLM_ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 1]}
GEMMA_4 = {
    "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "global_head_dim": 16,
    "sliding_window": 20, "vocab_size_per_layer_input": 288, "hidden_size_per_layer_input": 8, "model_type": "gemma4_text",
}  # fmt: skip
GEMMA_4_VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 16, "patch_size": 4, "position_embedding_size": 80, "pooling_kernel_size": 2,
}  # fmt: skip
GEMMA_4_EDGES = {"boi_token_id": IDS["<|image>"], "eoi_token_id": IDS["<image|>"]}
HALVES = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
QWEN = {
    "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 48, "patch_size": 4,
    "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}


@dataclass(frozen=True)
class Seeing:
    """config: of the whole model. marker: what its template writes. processor: transformers' class of that name, made with
    `settings`."""

    config: Callable[[], Any]
    token: str
    marker: str
    processor: str
    settings: dict[str, Any]
    extras: tuple[str, ...] = ()
    """What the processor gives beside pixel values."""
    writer: str = ""
    """transformers' class of the whole processor, which writes placeholders, and what it holds."""
    holds: dict[str, Any] = field(default_factory=dict)
    published: Callable[[dict[str, Any]], dict[str, Any]] = lambda said: said
    """config.json of transformers -> as its authors publish it."""
    said: Callable[[dict[str, Any]], dict[str, Any]] = lambda said: said
    """The same of preprocessor_config.json."""
    build: Callable[[Any], Any] | None = None
    """A configuration -> the model, where transformers does not have it."""
    renamed: tuple[tuple[str, str], ...] = ()
    """What names of tensors begin with -> as its authors publish them."""
    tokens: tuple[str, ...] = ()
    """Special tokens behind `NAMES`."""
    engine: dict[str, Any] = field(default_factory=dict)
    """Settings of the engine that tests it."""


def config(name: str, text: dict[str, Any], vision: dict[str, Any], token: str, **more: Any) -> Callable[[], Any]:
    ids = {"image_token_id": IDS[token], "image_token_index": IDS[token]}
    ids |= {"video_token_id": IDS["<|video_pad|>"], "vision_start_token_id": IDS["<|vision_start|>"]}
    return lambda: getattr(transformers, name)(
        text_config={**TEXT, **text}, vision_config=vision, tie_word_embeddings=False, **ids, **more
    )
