"""Vision encoders in Mistral's format: translates `vision_encoder` of params.json and the encoder's tensors to transformers'
form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.errors import CheckpointError, UnsupportedModelError

KEY = "vision_encoder"
READS = "image_processor"
"""Key of the resulting configuration for the equivalent of preprocessor_config.json."""
_SAME = (
    "hidden_size", "num_channels", "image_size", "patch_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "rope_theta",
)  # fmt: skip
_MERGES = "patch_merge"
_OTHER = (
    "image_token_id", "image_break_token_id", "image_end_token_id", "adapter_bias", "mm_projector_id", "spatial_merge_size",
    "max_image_size", "add_pre_mm_projector_layer_norm",
)  # fmt: skip
_ONE = {
    "vision_encoder.patch_conv": "model.vision_tower.patch_conv", "vision_encoder.ln_pre": "model.vision_tower.ln_pre",
    "vision_language_adapter.w_in": "model.multi_modal_projector.linear_1",
    "vision_language_adapter.w_out": "model.multi_modal_projector.linear_2",
    "patch_merger.merging_layer": "model.multi_modal_projector.patch_merger.merging_layer",
    "pre_mm_projector_norm": "model.multi_modal_projector.norm",
}  # fmt: skip
_LAYER = {
    "attention_norm": "attention_norm", "ffn_norm": "ffn_norm", "attention.wq": "attention.q_proj",
    "attention.wk": "attention.k_proj", "attention.wv": "attention.v_proj", "attention.wo": "attention.o_proj",
    "feed_forward.w1": "feed_forward.gate_proj", "feed_forward.w2": "feed_forward.down_proj",
    "feed_forward.w3": "feed_forward.up_proj",
}  # fmt: skip
_NAME = re.compile(r"vision_encoder\.transformer\.layers\.(\d{1,5})\.(.+)\.weight")


def around(path: Path, section: Any, text: Mapping[str, Any]) -> dict[str, Any]:
    """The equivalent of config.json for a model with the text part `text`. CheckpointError and UnsupportedModelError name the
    key."""
    if not isinstance(section, dict):
        raise CheckpointError(f"{path}: {KEY}: must be an object")
    if odd := sorted(key for key, value in section.items() if value and key not in {*_SAME, *_OTHER}):
        raise UnsupportedModelError(f"{path}: {KEY}: {', '.join(odd)[:200]}: not read by this version")
    merges = section.get("mm_projector_id") == _MERGES
    if (
        section.get("mm_projector_id") not in (None, "", _MERGES)
        or bool(section.get("add_pre_mm_projector_layer_norm")) != merges
    ):
        raise UnsupportedModelError(f"{path}: {KEY}: mm_projector_id: this version reads {_MERGES!r} with a norm before it")
    if text.get("model_type") != "mistral":
        raise UnsupportedModelError(f"{path}: {KEY}: not supported with MoE models")
    longest = section.get("max_image_size") or section.get("image_size")
    return {
        "architectures": ["PixtralForConditionalGeneration"],
        "model_type": "mistral3" if merges else "llava", "image_token_id": section.get("image_token_id"),
        "multimodal_projector_bias": bool(section.get("adapter_bias", True)), "projector_hidden_act": "gelu",
        "spatial_merge_size": section.get("spatial_merge_size", 2) if merges else 1, "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "vision_config": {
            "model_type": "pixtral", "hidden_act": "silu", "rope_theta": 10_000.0,
            **{k: section[k] for k in _SAME if k in section},
        },
        READS: {"size": {"longest_edge": longest}, "rounds": True},
    }  # fmt: skip


def target(name: str) -> str | None:
    """Transformers' name of a tensor. None: not a tensor of the encoder."""
    stem, _, kind = name.rpartition(".")
    if stem in _ONE and (kind == "weight" or (kind == "bias" and "adapter" in stem)):
        return f"{_ONE[stem]}.{kind}"
    found = _NAME.fullmatch(name)
    if found is None or found[2] not in _LAYER:
        return None
    return f"model.vision_tower.transformer.layers.{int(found[1])}.{_LAYER[found[2]]}.weight"


def interleaved_heads(name: str, params: Mapping[str, Any]) -> int | None:
    """Number of heads with interleaved rows in a tensor. None: not q or k of the encoder."""
    found = _NAME.fullmatch(name)
    if found is None or found[2] not in ("attention.wq", "attention.wk"):
        return None
    heads = params[KEY].get("num_attention_heads") if isinstance(params.get(KEY), dict) else None
    return heads if isinstance(heads, int) else 16
