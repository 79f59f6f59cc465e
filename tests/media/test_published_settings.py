"""Settings as published files have them: what they make of an image, by the rules of their processors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, ConfigError, UnsupportedModelError
from thalweg.media.processors import processor
from thalweg.models import registry

TEXT = {
    "vocab_size": 320, "hidden_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
}  # fmt: skip
CLIP = {"mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711]}
QWEN: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", **TEXT, "image_token_id": 55,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {"depth": 32, "hidden_size": 1280, "num_heads": 16, "out_hidden_size": 2048, "patch_size": 14},
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "mm_tokens_per_image": 256,
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152, "image_size": 896, "patch_size": 14, "model_type": "siglip_vision_model"},
}  # fmt: skip


def made(path: Path, config: dict[str, Any], said: dict[str, Any] | None) -> Any:
    (path / "config.json").write_text(json.dumps(config))
    if said is not None:
        (path / "preprocessor_config.json").write_text(json.dumps(said))
    return processor(read_config(path), path)


def test_qwen2_5_vl_with_its_text_part_beside(tmp_path: Path) -> None:
    p = made(tmp_path, QWEN, {"min_pixels": 3136, "max_pixels": 12_845_056, "image_mean": CLIP["mean"], "size": None})
    (view,) = p.views(1280, 720)
    assert view.sizes == ((1288, 728),)
    assert p.grid((1280, 720)) == (46, 26)
    assert (p.window, p.head_dim, p.token) == (4, 80, 55)
    (large,) = p.views(8000, 6000)
    assert large.sizes[0][0] * large.sizes[0][1] <= 12_845_056
    config = read_config(tmp_path)
    spec = registry.family(config)(config)
    assert spec.vision is not None
    assert spec.vision.windowed == frozenset(range(32)) - {7, 15, 23, 31}
    assert spec.ropes[0].axes == (0,) * 16 + (1,) * 24 + (2,) * 24


def test_gemma3(tmp_path: Path) -> None:
    p = made(
        tmp_path,
        GEMMA,
        {"do_pan_and_scan": None, "size": {"height": 896, "width": 896}, "resample": 2, "image_mean": [0.5] * 3},
    )
    assert p.text((896, 896), "#") == f"\n\n<start_of_image>{'#' * 256}<end_of_image>\n\n"
    assert (p.token, p.resample, p.std) == (262_144, 2, (0.5, 0.5, 0.5))


INTERNVL: dict[str, Any] = {
    "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "downsample_ratio": 0.5, "dynamic_image_size": True,
    "force_image_size": 448, "max_dynamic_patch": 12, "min_dynamic_patch": 1, "ps_version": "v2", "select_layer": -1,
    "use_thumbnail": True, "llm_config": {"model_type": "qwen2", **TEXT},
    "vision_config": {
        "model_type": "intern_vit_6b", "hidden_size": 1024, "image_size": 448, "patch_size": 14, "num_hidden_layers": 24,
        "num_attention_heads": 16, "intermediate_size": 4096, "norm_type": "layer_norm", "qk_normalization": False,
        "qkv_bias": True,
    },
}  # fmt: skip
PLAIN = {"crop_size": 448, "do_center_crop": True, "resample": 3, "size": 448, "image_mean": [0.485, 0.456, 0.406]}
MOON: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "media_placeholder_token_id": 163_605,
    "text_config": {"model_type": "kimi_k2", **TEXT},
    "vision_config": {
        "patch_size": 14, "init_pos_emb_height": 64, "init_pos_emb_width": 64, "vt_num_attention_heads": 16,
        "vt_num_hidden_layers": 27, "vt_hidden_size": 1152, "vt_intermediate_size": 4304, "merge_kernel_size": [2, 2],
        "mm_projector_type": "patchmerger",
    },
}  # fmt: skip
CFG = {"media_proc_cfg": {"in_patch_limit": 16_384, "patch_limit_on_one_side": 512, "image_mean": [0.5] * 3}}


def test_internvl_as_its_authors_write_it(tmp_path: Path) -> None:
    """The tokenizer says what stands for a vector. Settings of how images are cut may be replaced, and others are refused."""
    words = {"added_tokens_decoder": {"151667": {"content": "<IMG_CONTEXT>"}, "151665": {"content": "<img>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(words))
    p = made(tmp_path, INTERNVL, PLAIN)
    assert (p.token, p.count((448, 448)), p.count((1280, 720)), p.marker) == (151_667, 256, 9 * 256, "<image>")
    config = read_config(tmp_path)
    assert processor({**config, "mm_processor_kwargs": {"max_dynamic_patch": 2}}, tmp_path).count((1280, 720)) == 3 * 256
    with pytest.raises(ConfigError, match="unknown setting 'max_pixels'"):
        processor({**config, "mm_processor_kwargs": {"max_pixels": 9}}, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has no <IMG_CONTEXT>"):
        processor(config, tmp_path)


def test_kimi_as_its_authors_write_it(tmp_path: Path) -> None:
    p = made(tmp_path, MOON, CFG)
    assert (p.token, p.most, p.longest, p.side, p.head_dim, p.merge) == (163_605, 16_384, 512, 64, 72, 2)
    assert p.count((1280, 720)) == 46 * 26
    more = {**read_config(tmp_path), "mm_processor_kwargs": {"in_patch_limit": 1024}}
    assert processor(more, tmp_path).count((1280, 720)) < 300
    with pytest.raises(ConfigError, match="unknown setting 'max_pixels'"):
        processor({**more, "mm_processor_kwargs": {"max_pixels": 9}}, tmp_path)


@pytest.mark.parametrize(
    ("config", "said", "error"),
    [
        (GEMMA, {"do_pan_and_scan": True}, UnsupportedModelError),
        (GEMMA, {"size": {"height": 448, "width": 448}}, UnsupportedModelError),
        (QWEN, {"do_rescale": False}, UnsupportedModelError),
        ({**MOON, "architectures": ["KimiVLForConditionalGeneration"]}, {"pad_input": False}, UnsupportedModelError),
        (QWEN, {"image_mean": [0.5]}, CheckpointError),
        (QWEN, {"min_pixels": "few"}, CheckpointError),
        ({**QWEN, "image_token_id": -1}, {}, CheckpointError),
    ],
)
def test_settings_that_are_wrong_or_not_served(tmp_path: Path, config: Any, said: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        made(tmp_path, config, said)


def test_without_settings_or_sight_there_is_no_processor(tmp_path: Path) -> None:
    assert made(tmp_path, QWEN, None) is None
    assert made(tmp_path, {**QWEN, "vision_config": None}, {}) is None
    assert made(tmp_path, {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TEXT}, {}) is None
