"""Settings as published files have them: what they make of an image, by the rules of their processors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
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


@pytest.mark.parametrize(
    ("config", "said", "error"),
    [
        (GEMMA, {"do_pan_and_scan": True}, UnsupportedModelError),
        (GEMMA, {"size": {"height": 448, "width": 448}}, UnsupportedModelError),
        (QWEN, {"do_rescale": False}, UnsupportedModelError),
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
