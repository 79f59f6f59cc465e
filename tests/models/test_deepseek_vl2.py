"""DeepSeek-VL2: the smallest model has Llama's attention, and other forms of the projector are refused."""

from __future__ import annotations

from typing import Any

import pytest
from deepseek_vl2 import spell_config

from thalweg.checkpoint.config import canonical_config
from thalweg.errors import UnsupportedModelError
from thalweg.models import registry
from thalweg.models.spec import Attention, LatentAttention

LANGUAGE: dict[str, Any] = {
    "vocab_size": 288, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 512, "n_routed_experts": 6, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1, "q_lora_rank": None,
}  # fmt: skip
LATENT = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
NONE = {"use_mla": False, "kv_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0}


def read(language: dict[str, Any], **more: Any) -> Any:
    config = canonical_config({**spell_config({**LANGUAGE, **language}), **more})
    return registry.family(config)(config)


@pytest.mark.parametrize(("language", "kind"), [(LATENT, LatentAttention), (NONE, Attention)])
def test_attention_is_latent_unless_the_file_says_otherwise(language: dict[str, Any], kind: type) -> None:
    spec = read(language)
    assert {type(layer.mixer) for layer in spec.layers} == {kind}
    assert spec.vision.separator


@pytest.mark.parametrize(
    ("key", "value"), [("tile_tag", "1D"), ("global_view_pos", "tail"), ("projector_config", {"projector_type": "linear"})]
)
def test_other_arrangements_are_refused(key: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=key if key != "projector_config" else "projector_type"):
        read(LATENT, **{key: value})
