"""DeepSeek-VL, Janus and Step3-VL in the format of their authors: published sizes, text around images, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import seeing

from thalweg.checkpoint.config import canonical_config, read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors import processor
from thalweg.models import registry

JANUS_PRO: dict[str, Any] = {
    "architectures": ["MultiModalityCausalLM"], "model_type": "multi_modality",
    "aligner_config": {"params": {"depth": 2, "input_dim": 1024, "n_embed": 4096, "projector_type": "mlp_gelu"}},
    "gen_vision_config": {"cls": "VQ-16"},
    "language_config": {
        "max_position_embeddings": 16_384, "model_type": "llama", "num_hidden_layers": 30, "vocab_size": 102_400,
    },
    "vision_config": {
        "cls": "CLIPVisionTower",
        "params": {"image_size": 384, "model_name": "siglip_large_patch16_384", "select_layer": -1},
    },
}  # fmt: skip


def read(config: dict[str, Any]) -> Any:
    made = canonical_config(config)
    return registry.family(made)(made)


def test_published_files_omit_sizes_of_the_decoder_and_of_the_encoder() -> None:
    spec = read(JANUS_PRO)
    assert (spec.hidden, len(spec.layers), spec.vocab, spec.tied) == (4096, 30, 102_400, False)
    assert (spec.vision.hidden, len(spec.vision.layers), spec.vision.rows) == (1024, 24, 576)


@pytest.mark.parametrize(("chosen", "layers"), [(-1, 24), (-2, 23), (20, 20)])
def test_layers_behind_the_selected_one_are_not_computed(chosen: int, layers: int) -> None:
    params = {**JANUS_PRO["vision_config"]["params"], "select_layer": chosen}
    spec = read({**JANUS_PRO, "vision_config": {"cls": "CLIPVisionTower", "params": params}})
    assert len(spec.vision.layers) == layers
    assert (spec.rename("vision_model.vision_tower.blocks.23.norm1.weight") is None) == (layers < 24)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("vision_config", {"cls": "HybridVisionTower", "params": {}}, "only CLIPVisionTower"),
        ("vision_config", {"cls": "CLIPVisionTower", "params": {"model_name": "sam_b"}}, "supported: siglip"),
        ("aligner_config", {"params": {"projector_type": "linear"}}, "only mlp_gelu"),
        ("aligner_config", {"params": {"depth": 2, "input_dim": 1024, "n_embed": 2048}}, "must be 1024 and 4096"),
    ],
)
def test_other_forms_are_refused(key: str, value: Any, said: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=said):
        read({**JANUS_PRO, key: value})


@pytest.mark.parametrize(("name", "text"), [("multi-modality", "x" * 16), ("multi-modality-janus", None)])
def test_janus_writes_tokens_around_an_image(name: str, text: str | None, tmp_path: Path) -> None:
    seeing.settings(name, tmp_path)
    ours = processor(read_config(tmp_path), tmp_path)
    assert ours is not None
    assert ours.text((30, 40), "x") == (text or f"<begin_of_image>{'x' * 16}<end_of_image>")


@pytest.mark.parametrize(("key", "value"), [("use_cls_token", True), ("use_ln_post", True), ("ls_init_value", None)])
def test_other_encoders_of_step_vl_are_refused(key: str, value: Any) -> None:
    said = seeing.FAMILIES["step-vl"].published({"vision_config": {"hidden_size": 32, "num_hidden_layers": 2,
                                                                  "num_attention_heads": 2}})  # fmt: skip
    assert read(said).vision is not None
    with pytest.raises(UnsupportedModelError, match=key):
        read({**said, "vision_config": {**said["vision_config"], key: value}})
