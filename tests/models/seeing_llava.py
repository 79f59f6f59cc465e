"""Small LLaVA models in the formats of others: transformers has the same networks under other names. For tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from seeing_parts import CLIP, IDS, PINS, SIGLIP, Seeing, config
from torch import nn

from thalweg.checkpoint.llava import ENCODERS

SMALL_SIGLIP = SIGLIP | {"image_size": 28, "patch_size": 7}
ENCODERS |= {"tiny/clip": CLIP, "tiny/siglip": SMALL_SIGLIP}
NAMES = (
    ("model.language_model.", "model."), ("language_model.model.", "model."), ("language_model.lm_head.", "lm_head."),
    ("model.image_newline", "model.image_newline"), ("image_newline", "model.image_newline"),
    *(
        (f"{root}multi_modal_projector.linear_{i}.", f"model.mm_projector.{2 * i - 2}.")
        for root in ("model.", "") for i in (1, 2)
    ),
    *(
        (f"{root}vision_tower.{old}", "model.vision_tower.vision_tower.vision_model.")
        for root in ("model.", "") for old in ("vision_model.", "")
    ),
)  # fmt: skip
"""Prefixes of tensors of transformers -> those of the authors."""
HALF = {"size": {"height": 28, "width": 28}, "image_grid_pinpoints": PINS}
CROP = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}


def original(name: str, kind: str, encoder: str, ratio: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """config.json of the authors: keys of the text part outside, grids as widths and heights."""

    def write(said: dict[str, Any]) -> dict[str, Any]:
        text = dict(said["text_config"])
        rope = text.pop("rope_parameters")
        return {
            **text, "rope_theta": rope["rope_theta"], "architectures": [name], "model_type": kind, "mm_vision_tower": encoder,
            "mm_projector_type": "mlp2x_gelu", "mm_patch_merge_type": "spatial_unpad", "mm_vision_select_layer": -2,
            "mm_vision_select_feature": "patch", "mm_resampler_type": None, "image_aspect_ratio": ratio,
            "image_grid_pinpoints": [[wide, high] for high, wide in PINS], "tie_word_embeddings": False,
        }  # fmt: skip

    return write


class BeeProjector(nn.Module):
    def __init__(self, hidden: int, out: int) -> None:
        super().__init__()
        self.pre_norm = nn.LayerNorm(hidden, 1e-6)
        self.linear_1, self.linear_2 = nn.Linear(hidden, 4 * out), nn.Linear(4 * out, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.linear_2(nn.functional.gelu(self.linear_1(self.pre_norm(x))))
        return made


def bee(config: Any) -> Any:
    model = transformers.LlavaOnevisionForConditionalGeneration._from_config(config, attn_implementation="eager")
    model.model.multi_modal_projector = BeeProjector(config.vision_config.hidden_size, config.text_config.hidden_size)
    return model


def rename_config(name: str, **more: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda said: {**said, "architectures": [name], **more}


def next_family(name: str, kind: str, text: dict[str, Any]) -> Seeing:
    return Seeing(
        config("LlavaNextConfig", text, CLIP, "<image>", image_grid_pinpoints=PINS), "<image>", "<image>\n",
        "LlavaNextImageProcessorPil", {**CROP, "image_grid_pinpoints": PINS}, ("image_sizes",), writer="LlavaNextProcessor",
        holds={"patch_size": 7, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}, renamed=NAMES,
        published=original(name, kind, "tiny/clip", "anyres"),
    )  # fmt: skip


LLAVA: dict[str, Seeing] = {
    "llava-llama": next_family("LlavaLlamaForCausalLM", "llava_llama", {"model_type": "llama"}),
    "llava-mistral": next_family(
        "LlavaMistralForCausalLM", "llava_mistral", {"model_type": "mistral", "sliding_window": None}
    ),
    "llava-qwen": Seeing(
        config("LlavaOnevisionConfig", {"model_type": "qwen2"}, SMALL_SIGLIP, "<image>",
                image_grid_pinpoints=PINS, vision_aspect_ratio="anyres_max_2"),
        "<image>", "<image>\n", "LlavaOnevisionImageProcessorPil", HALF | {"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
        ("image_sizes", "batch_num_images"), renamed=NAMES, writer="LlavaOnevisionProcessor",
        holds={"num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_2"},
        published=original("LlavaQwenForCausalLM", "llava_qwen", "tiny/siglip", "anyres_max_2"),
    ),
    "bee": Seeing(
        config("LlavaOnevisionConfig", {"model_type": "qwen3"}, SMALL_SIGLIP, "<image>",
                image_grid_pinpoints=PINS, vision_aspect_ratio="anyres_max_2"),
        "<image>", "<image>\n", "LlavaOnevisionImageProcessorPil", HALF, ("image_sizes", "batch_num_images"),
        writer="LlavaOnevisionProcessor", published=rename_config("BeeForConditionalGeneration", model_type="bee"), build=bee,
        holds={"num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_2"},
    ),
    "mantis": Seeing(
        config("LlavaConfig", {"model_type": "llama"}, SMALL_SIGLIP, "<image>", vision_feature_select_strategy="full"),
        "<image>", "<image>\n", "SiglipImageProcessorPil", {"size": {"height": 28, "width": 28}},
        published=rename_config("MantisForConditionalGeneration"),
    ),
    "tarsier": Seeing(
        config("LlavaConfig", {"model_type": "llama"}, CLIP, "<image>"), "<image>", "<image>\n", "CLIPImageProcessorPil", CROP,
        published=rename_config(
            "TarsierForConditionalGeneration", image_newline_idx=IDS["[IMG_BREAK]"], image_new_idx=IDS["[IMG_END]"]
        ),
    ),
}  # fmt: skip
