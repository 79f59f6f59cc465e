"""Rotary tables against transformers' own, for every scaling it names that the families use."""

from __future__ import annotations

import re

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import RopeParameters
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from thalweg.checkpoint.config import max_len, rope_parameters
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families import groups
from thalweg.models.families.common import rope
from thalweg.models.layers.rotary import cos_sin_table
from thalweg.models.registry import family
from thalweg.models.spec import describe_stretch
from thalweg.models.spec import rope_type as check

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
FACTORS = [1.0 + i / 7 for i in range(32)]
CASES = {
    "default": ({"rope_type": "default"}, 4096),
    "big-theta": ({"rope_type": "default", "rope_theta": 1e6}, 40960),
    "linear": ({"rope_type": "linear", "factor": 2.5}, 4096),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0}, 2048),
    "llama3.1": ({"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5, **LLAMA3}, 131072),
    "llama3.2": ({"rope_type": "llama3", "factor": 32.0, "rope_theta": 5e5, **LLAMA3}, 131072),
    "llama4": (
        {"rope_type": "llama3", "factor": 16.0, "rope_theta": 5e5, **LLAMA3, "high_freq_factor": 1.0}, 131072,
    ),
    "proportional": ({"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}, 4096),
    "yarn": ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1e6}, 131072),
    "yarn-mscale": (
        {
            "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707,
            "mscale_all_dim": 1.0, "beta_fast": 16.0, "beta_slow": 2.0,
        },
        163840,
    ),
    "yarn-untruncated": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048, "truncate": False,
         "attention_factor": 1.5},
        8192,
    ),
    "longrope": (
        {"rope_type": "longrope", "short_factor": FACTORS, "long_factor": [3 * f for f in FACTORS], "factor": 32.0,
         "original_max_position_embeddings": 4096},
        131072,
    ),
    "longrope-derived-factor": (
        {"rope_type": "longrope", "short_factor": FACTORS, "long_factor": [3 * f for f in FACTORS],
         "original_max_position_embeddings": 4096},
        131072,
    ),
}  # fmt: skip


def oracle(rope: dict, trained: int, positions: torch.Tensor) -> torch.Tensor:
    """transformers' cos and sin of one half, as it gives them for a sequence with these positions."""
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=trained,
        rope_parameters={"rope_theta": 10000.0, **rope},
    )  # fmt: skip
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    return torch.cat([cos[0, :, :32], sin[0, :, :32]], -1)


def table(rope: dict, trained: int, length: int) -> torch.Tensor:
    config = {"max_position_embeddings": trained, "rope_parameters": dict(rope)}
    return cos_sin_table(rope_parameters(config), 64, trained, length)


@pytest.mark.parametrize("name", CASES)
def test_tables_are_those_of_transformers_up_to_the_trained_length(name):
    rope, trained = CASES[name]
    length = min(trained, rope.get("original_max_position_embeddings", 4096), 4096)
    at = torch.arange(length)
    torch.testing.assert_close(table(rope, trained, length), oracle(rope, trained, at), atol=2e-6, rtol=0)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_scalings_by_length_use_the_longest_sequence_served(name):
    rope, trained = CASES[name]
    length = 3 * rope.get("original_max_position_embeddings", trained)
    got = table(rope, trained, length)
    torch.testing.assert_close(got, oracle(rope, trained, torch.arange(length)), atol=2e-5, rtol=0)
    assert not torch.allclose(got[:100], table(rope, trained, 1024)[:100], atol=1e-3)


def test_both_spellings_of_a_configuration_mean_the_same():
    new = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}, "max_position_embeddings": 64}
    old = {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5e5, "max_position_embeddings": 64}
    bare = {"rope_theta": 5e5, "rope_scaling": None}
    assert rope_parameters(new) == rope_parameters(old)
    assert rope_parameters(bare) == {"rope_type": "default", "rope_theta": 5e5}
    assert rope_parameters({}) == {"rope_type": "default", "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("rope", "want"),
    [
        (None, 4096),
        ({"type": "linear", "factor": 4.0}, 16384),
        ({"type": "dynamic", "factor": 4.0}, 4096),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "llama3", "factor": 8.0, **LLAMA3}, 4096),
    ],
)
def test_the_longest_sequence_follows_the_scaling(rope, want):
    assert max_len({"max_position_embeddings": 4096, "rope_scaling": rope}) == want


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        ({"rope_type": "linear"}, "factor: missing"),
        ({"rope_type": "linear", "factor": "2"}, "factor: must be a number"),
        ({"rope_type": "linear", "factor": -1}, "factor: must be between"),
        ({"rope_type": "llama3", "factor": 8, **LLAMA3, "high_freq_factor": 0.5}, "high_freq_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "short_factor: must be a list of 32"),
        ({"rope_type": "yarn", "factor": 2, "beta_fast": True}, "beta_fast: must be a number"),
        ({"rope_theta": 0}, "rope_theta: must be between"),
        ({"rope_theta": True}, "rope_theta: must be a number"),
        ([1], "rope_parameters: must be an object"),
    ],
)
def test_bad_settings_are_refused_by_name(rope, words):
    with pytest.raises(CheckpointError, match=words):
        cos_sin_table(rope_parameters({"rope_parameters": rope, "max_position_embeddings": 64}), 64, 64, 64)


def test_what_this_version_lacks_is_refused_in_words():
    for scaling in ({"rope_type": "mrope"}, {"type": "su"}):
        with pytest.raises(UnsupportedModelError, match="rope_type"):
            check(rope_parameters({"rope_scaling": scaling}), 64)
    whole = {"partial_rotary_factor": 0.5, "max_position_embeddings": 64}
    with pytest.raises(UnsupportedModelError, match="partial_rotary_factor"):
        rope(whole, 64)
    assert rope(whole, 64, partial=True).dim == 32
    with pytest.raises(UnsupportedModelError, match="per layer type"):
        rope_parameters({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}})
    with pytest.raises(CheckpointError, match="head_dim"):
        check({"rope_type": "default"}, 63)


MSCALES = {"short_mscale": 1.4, "long_mscale": 1.7}
PHI_MOE = {
    "architectures": ["PhiMoEForCausalLM"], "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1,
    "intermediate_size": 16, "vocab_size": 8, "max_position_embeddings": 131072,
}  # fmt: skip


def test_magnitudes_of_phi_3_5_moe_scale_the_table_and_no_other_family_has_them():
    said, trained = CASES["longrope"]
    (made,) = family(PHI_MOE)({**PHI_MOE, "rope_scaling": {**said, **MSCALES}}).ropes
    plain = {**said, "attention_factor": 1.0}
    for length, by in ((4096, 1.4), (4097, 1.7)):
        got = cos_sin_table(made.parameters, 64, trained, length)
        torch.testing.assert_close(got, table({**plain, "rope_theta": 1e6}, trained, length) * by)
    for config, words in (
        ({**PHI_MOE, "rope_scaling": said}, "rope_parameters: short_mscale: missing"),
        ({**PHI_MOE, "architectures": ["Phi3ForCausalLM"], "rope_scaling": {**said, **MSCALES}}, "'long_mscale' is not known"),
        ({**PHI_MOE, "rope_scaling": {"type": "linear", "factor": 2.0, **MSCALES}}, "'long_mscale' is not known"),
    ):
        with pytest.raises((CheckpointError, UnsupportedModelError), match=words):
            family(config)(config)


def test_a_key_that_nobody_knows_is_refused_by_name_in_every_nested_group():
    """Those of rotary settings: tests/models/test_rope_groups.py."""
    for config, words in (
        (
            {"architectures": ["KimiLinearForCausalLM"], "linear_attn_config": {"decay": 2}},
            "linear_attn_config: 'decay' is not",
        ),
        (
            {"architectures": ["MptForCausalLM"], "hidden_size": 8, "num_attention_heads": 2, "attn_config": {"kv_n_heads": 1}},
            "attn_config: 'kv_n_heads' is not",
        ),
    ):
        with pytest.raises(UnsupportedModelError, match=words):
            family(config)(config)


def test_what_transformers_writes_and_ignores_is_known():
    assert set(RopeParameters.__annotations__) <= groups.ROPE_KEYS
    served = ("qwen2_vl", "qwen3_vl", "qwen3_omni_moe_text", "glm4v", "qwen3_5", "qwen3_5_moe", "mistral4", "ministral3")
    ignored = set().union(*(getattr(CONFIG_MAPPING[name], "ignore_keys_at_rope_validation", ()) for name in served))
    assert ignored - {"llama_4_scaling_beta"} <= groups.ROPE_KEYS, "that one is read by its families"
    for extra in ({"finetuned": True}, {"attn_factor": 1.0}, {"mrope_section": [8, 12, 12]}, {"beta_fast": 4}):
        groups.check_rope({"rope_scaling": {"type": "linear", "factor": 2.0, **extra}})
    with pytest.raises(UnsupportedModelError, match="'attn_factor' is not known"):
        groups.check_rope({"rope_scaling": {"type": "yarn", "factor": 2.0, "attn_factor": 1.2}})


@pytest.mark.parametrize(
    ("name", "length", "words"),
    [
        ("longrope", 4096, "short factors, as at most 4096 tokens"),
        ("longrope", 4097, "long factors for every sequence.*--max-model-len 4096 takes the short"),
        ("dynamic", 2048, ""),
        ("dynamic", 2049, "stretched to 2049 tokens for every sequence; --max-model-len 2048"),
        ("yarn", 131072, ""),
    ],
)
def test_a_scaling_by_length_says_which_it_takes_and_the_flag_that_changes_it(name, length, words):
    said, trained = CASES[name]
    found = describe_stretch(rope({"max_position_embeddings": trained, "rope_parameters": said}, 64), length)
    assert re.match(words, found)
    assert bool(found) == bool(words)
