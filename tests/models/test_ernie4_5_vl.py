"""Ernie 4.5 VL: the authors' configuration means what that of transformers means."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg.checkpoint.config import canonical_config
from thalweg.errors import UnsupportedModelError
from thalweg.models import registry
from thalweg.models.spec import ModalityMoE

NAME = "Ernie4_5_VLMoeForConditionalGeneration"
SIZES = {
    "vocab_size": 103_424, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 512, "moe_k": 2, "moe_num_shared_experts": 2,
    "moe_intermediate_size": [48, 16],
}  # fmt: skip
VISION = {"depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48}
PUBLISHED: dict[str, Any] = {
    **SIZES, "architectures": [NAME], "model_type": "ernie4_5_moe_vl", "moe_num_experts": [8, 8], "moe_layer_interval": 1,
    "moe_layer_start_index": [1, 1], "moe_layer_end_index": [29, 28], "im_patch_id": 100_295, "rope_theta": 500_000,
    "rope_3d": True, "freq_allocation": 20, "tie_word_embeddings": True, "vision_config": VISION,
}  # fmt: skip
OURS: dict[str, Any] = {
    "architectures": [NAME], "model_type": "ernie4_5_vl_moe", "image_token_id": 100_295, "tie_word_embeddings": True,
    "text_config": {
        **SIZES, "model_type": "ernie4_5_vl_moe_text", "moe_num_experts": 8, "mlp_layer_types": ["dense", "sparse", "sparse"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000, "mrope_section": [22, 22, 20]},
    },
    "vision_config": VISION,
}  # fmt: skip


def read(said: dict[str, Any]) -> Any:
    config = canonical_config(said)
    return registry.family(config)(config)


def test_lists_of_the_authors_are_numbers_of_text_and_images() -> None:
    spec = read(PUBLISHED)
    assert spec == read(OURS)
    part = spec.layers[1].ffn
    assert isinstance(part, ModalityMoE)
    assert (part.text.inner, part.image.inner, part.image.first_expert) == (48, 16, 8)


@pytest.mark.parametrize(
    ("key", "value"), [("moe_num_experts", [8, 4]), ("moe_layer_start_index", [1, 2]), ("moe_layer_end_index", [1, 2])]
)
def test_mixtures_that_differ_otherwise_are_refused(key: str, value: list[int]) -> None:
    with pytest.raises(UnsupportedModelError, match=key):
        read({**PUBLISHED, key: value})
