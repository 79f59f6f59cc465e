"""Models that also see, served for text: the whole checkpoint, its own class of transformers asked with text alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from rig import Rig
from test_families import greedy, prompts
from zoo import SMALL, spread

from thalweg.checkpoint.config import read_config
from thalweg.models import registry

NEW = 6
TEXT = {**SMALL, "head_dim": 16, "pad_token_id": 0}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
SIGLIP = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32,
    "patch_size": 16, "model_type": "siglip_vision_model",
}  # fmt: skip
PIXTRAL = {
    "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14, "head_dim": 16, "model_type": "pixtral",
}  # fmt: skip
QWEN = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 48, "patch_size": 4,
    "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1000.0, "factor": 16.0, "original_max_position_embeddings": 16, "beta_fast": 4.0,
    "beta_slow": 0.5, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4,
}  # fmt: skip
SEEING: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "gemma3": (
        transformers.Gemma3Config, {"sliding_window": 10, "query_pre_attn_scalar": 24, "model_type": "gemma3_text"}, SIGLIP
    ),
    "mistral-small": (transformers.Mistral3Config, {"sliding_window": None, "model_type": "mistral"}, PIXTRAL),
    "ministral3": (transformers.Mistral3Config, {"rope_parameters": YARN, "model_type": "ministral3"}, PIXTRAL),
    "qwen2.5-vl": (
        transformers.Qwen2_5_VLConfig, {"rope_parameters": {**MROPE, "mrope_section": [2, 2, 2]}, "head_dim": 12},
        QWEN | {"fullatt_block_indexes": [0]},
    ),
    "qwen3-vl": (transformers.Qwen3VLConfig, {"rope_parameters": MROPE}, QWEN),
    "qwen3.5": (
        transformers.Qwen3_5Config,
        {
            "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24,
            "linear_value_head_dim": 16, "rope_parameters": {**MROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
        },
        QWEN,
    ),
    "qwen3.5-moe": (
        transformers.Qwen3_5MoeConfig,
        {
            "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24,
            "linear_value_head_dim": 16, "rope_parameters": {**MROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
            "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32,
        },
        QWEN,
    ),
}  # fmt: skip
"""Name -> (configuration class, of its text part what differs from TEXT, its vision part)."""


@pytest.mark.parametrize("name", sorted(SEEING))
def test_text_of_a_model_that_sees_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    kind, text, vision = SEEING[name]
    config = kind(
        text_config={**TEXT, **text},
        vision_config=vision,
        image_token_id=3,
        video_token_id=4,
        tie_word_embeddings=False,
        **({"mm_tokens_per_image": 4} if name == "gemma3" else {}),
    )
    model = transformers.AutoModelForImageTextToText.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    spread(model, 7)
    model.save_pretrained(tmp_path)
    asked = [[5 + t % 250 for t in p] for p in prompts()[:3]]
    for s in Rig(tmp_path, platform="cpu").generate(asked, NEW, chunk=6, budget=17):
        ids, logp = greedy(model, s.tokens[: s.prompt], NEW)
        assert s.tokens == ids
        chosen = logp[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].numpy()
        np.testing.assert_allclose(s.logprobs, chosen[s.prompt - 1 :], atol=1e-4)


def test_the_text_part_of_a_configuration_may_leave_sizes_out(tmp_path: Path) -> None:
    """As Gemma 3's published files do."""
    whole = {**transformers.Gemma3Config().to_dict(), "architectures": ["Gemma3ForConditionalGeneration"]}
    del whole["vision_config"]
    said = {"architectures": whole["architectures"], "text_config": {"model_type": "gemma3_text"}, "eos_token_id": [1, 106]}
    read = []
    for config in (whole, said):
        (tmp_path / "config.json").write_text(json.dumps(config))
        read.append(read_config(tmp_path, overrides={"text_config": {"num_hidden_layers": 7, "layer_types": None}}))
    assert read[1]["eos_token_id"] == [1, 106]
    assert registry.family(read[0])(read[0]) == registry.family(read[1])(read[1])


@pytest.mark.parametrize(("kind", "heads"), [("llama", 32), ("mistral", 32)])
def test_llava_leaves_sizes_of_its_text_part_out(kind: str, heads: int, tmp_path: Path) -> None:
    """As its published files do; the sizes are those of transformers' configuration class."""
    said = {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "image_token_index": 9,
        "text_config": {"model_type": kind, "vocab_size": 320}, "vision_config": {"model_type": "pixtral"},
        "vision_feature_layer": -1,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(said))
    read = read_config(tmp_path)
    theirs = transformers.LlavaConfig.from_pretrained(tmp_path).text_config
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
        assert read[key] == getattr(theirs, key)
    assert read.get("num_key_value_heads", heads) == theirs.num_key_value_heads
    assert registry.family(read)(read).vision is not None
