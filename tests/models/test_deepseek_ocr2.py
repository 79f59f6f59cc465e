"""DeepSeek-OCR 2 in its authors' format is the model that transformers' converter makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import transformers

from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError
from thalweg.media.processors import processor
from thalweg.models import registry

TEXT = {
    "hidden_size": 1280, "intermediate_size": 6848, "moe_intermediate_size": 896, "n_group": 1, "topk_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 10, "num_experts_per_tok": 6, "num_hidden_layers": 12,
    "num_key_value_heads": 10, "topk_method": "greedy", "vocab_size": 129_280, "max_position_embeddings": 8192,
}  # fmt: skip
PUBLISHED: dict[str, Any] = {
    "architectures": ["DeepseekOCR2ForCausalLM"], "model_type": "deepseek_vl_v2", **TEXT, "first_k_dense_replace": 1,
    "use_mla": False, "kv_lora_rank": None, "q_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0,
    "language_config": {**TEXT, "first_k_dense_replace": 1, "use_mla": False},
    "projector_config": {"input_dim": 896, "model_type": "mlp_projector", "n_embed": 1280, "projector_type": "linear"},
    "vision_config": {
        "image_size": 1024, "mlp_ratio": 3.7362, "model_name": "deepencoderv2",
        "width": {
            "qwen2-0-5b": {"dim": 896},
            "sam_vit_b": {
                "downsample_channels": [512, 896], "global_attn_indexes": [2, 5, 8, 11], "heads": 12, "layers": 12,
                "width": 768,
            },
        },
    },
}  # fmt: skip


def convert() -> dict[str, Any]:
    """As transformers' `convert_deepseek_ocr2_weights_to_hf` writes the settings."""
    sam = {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "global_attn_indexes": [2, 5, 8, 11],
        "downsample_channels": [512, 896],
    }  # fmt: skip
    qwen = {
        "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "vocab_size": 1,
    }  # fmt: skip
    text = {**TEXT, "mlp_layer_types": ["dense"] + ["sparse"] * 11}
    config = transformers.DeepseekOcr2Config(
        text_config=text, vision_config={"sam_config": sam, "encoder_config": qwen}, image_token_id=128_815
    )
    return {**config.to_dict(), "architectures": ["DeepseekOcr2ForConditionalGeneration"]}


def read(said: dict[str, Any], settings: dict[str, Any], path: Path) -> tuple[Any, Any]:
    (path / "config.json").write_text(json.dumps(said))
    (path / "processor_config.json").write_text(json.dumps(settings))
    token = {"id": 128_815, "content": "<image>"}
    (path / "tokenizer.json").write_text(json.dumps({"added_tokens": [token]}))
    config = read_config(path)
    return registry.family(config)(config), processor(config, path)


def test_the_authors_format_is_the_converted_model(tmp_path: Path) -> None:
    settings = {"candidate_resolutions": [[1024, 1024]], "downsample_ratio": 4, "patch_size": 16, "image_mean": [0.5] * 3}
    ours, seen = read(PUBLISHED, settings, tmp_path)
    theirs, other = read(convert(), {"image_processor": {}}, tmp_path)
    assert ours.vision == theirs.vision
    assert ours.layers == theirs.layers
    assert (ours.vocab, ours.tied, ours.names) == (theirs.vocab, theirs.tied, theirs.names)
    assert msgspec.structs.asdict(seen) == msgspec.structs.asdict(other)
    assert seen.offset(7) == 4  # PIL rounds the half of a space to an even number


def test_a_second_encoder_of_another_kind_is_refused(tmp_path: Path) -> None:
    width = {"sam_vit_b": {}, "clip-l-14-224": {}}
    with pytest.raises(CheckpointError, match="must have the parts sam_vit_b and qwen2-0-5b"):
        read({**PUBLISHED, "vision_config": {"width": width}}, {}, tmp_path)
