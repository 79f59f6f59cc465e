"""Settings as published files write them, against the same settings as the configuration class of transformers writes them."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from thalweg.checkpoint.spelling import canonical_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry
from thalweg.models.spec import ModelSpec

SIZES = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip


def read(config: dict[str, Any], name: str) -> ModelSpec:
    config = {**canonical_config(config), "architectures": [name]}
    return registry.family(config)(config)


DOTS = {
    **SIZES, "q_lora_rank": 24, "kv_lora_rank": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "index_n_heads": 8,
    "index_head_dim": 64, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 2, "swa_q_lora_rank": 20,
    "swa_kv_lora_rank": 12, "swa_head_dim": 24, "swa_qk_nope_head_dim": 16, "swa_v_head_dim": 12,
    "model_type": "dots3_note_text",
}  # fmt: skip
PATTERN = ["full_attention", "full_attention", *["sliding_attention"] * 3, "full_attention"]


@pytest.mark.parametrize(
    "said",
    [
        {"layer_types": PATTERN, "use_dsa": True, "sliding_window_size": 7, "rope_theta": 5e6, "swa_rope_theta": 3e4},
        {"layer_types": PATTERN, "use_dsa": False, "moe_layer_freq": 2, "first_k_dense_replace": 2},
        {"use_sliding_window": False, "moe_layer_freq": [0, 1, 0, 1, 1, 0], "moe_shared_expert_intermediate_size": 40},
        {"use_dsa": False, "n_shared_experts": 2, "shared_experts_intermediate_size": 12},
    ],
)
def test_dots_3_note(said: dict[str, Any]) -> None:
    theirs = transformers.Dots3NoteTextConfig(**DOTS, **said).to_dict()
    assert read({**DOTS, **said}, "Dots3NoteForConditionalGeneration") == read(theirs, "Dots3NoteForCausalLM")


@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        ({"attention_gate_type": "elementwise"}, UnsupportedModelError, "attention_gate_type"),
        ({"apply_mla_qkv_lora_rescale": False}, UnsupportedModelError, "apply_mla_qkv_lora_rescale"),
        ({"q_lora_rank": None}, CheckpointError, "q_lora_rank"),
        ({"index_head_dim": 32}, CheckpointError, "index_head_dim"),
        ({"per_layer_config": {n: {"hidden_size": 16} for n in "234"}}, UnsupportedModelError, "'hidden_size'"),
        ({"per_layer_config": {"2": {"v_head_dim": 16}}}, UnsupportedModelError, "one set of sizes for sliding_attention"),
        ({"moe_layer_freq": [1]}, CheckpointError, "moe_layer_freq"),
    ],
)
def test_dots_3_note_refuses(said: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        read({**DOTS, "qk_rope_head_dim": 48, "layer_types": PATTERN, **said}, "Dots3NoteForCausalLM")


RNJ: dict[str, Any] = {
    **SIZES, "head_dim": 16, "query_pre_attn_scalar": 16, "final_logit_softcapping": 30.0, "model_type": "gemma3_text",
    "layer_types": ["full_attention"] * 6, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.0,
    },
}  # fmt: skip


def test_rnj_1_is_gemma_3_without_windows() -> None:
    assert read(RNJ, "Rnj1ForCausalLM") == read(RNJ, "Gemma3ForCausalLM")
    for types in (None, ["full_attention"] * 5 + ["chunked_attention"], ["sliding_attention"] * 6):
        with pytest.raises((CheckpointError, UnsupportedModelError), match="layer_types"):
            read({**RNJ, "layer_types": types}, "Rnj1ForCausalLM")


PARAM: dict[str, Any] = {
    **SIZES, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2,
    "moe_intermediate_size": 16, "num_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5,
    "rope_theta": 1e4, "rms_norm_eps": 1e-6,
}  # fmt: skip


def test_param_2_is_ling_2_with_a_size_of_shared_experts() -> None:
    ling = read({**PARAM, "use_qk_norm": False}, "BailingMoeV2ForCausalLM")
    assert read({**PARAM, "moe_shared_expert_intermediate_size": 32}, "Param2MoEForCausalLM") == ling
    assert read({**PARAM, "use_qk_norm": True}, "Param2MoEForCausalLM") == read(PARAM, "BailingMoeV2ForCausalLM")
    wide = read({**PARAM, "moe_shared_expert_intermediate_size": 48}, "Param2MoEForCausalLM")
    assert [getattr(getattr(each.ffn, "shared", None), "inner", 0) for each in wide.layers] == [0, *[48] * 5]
