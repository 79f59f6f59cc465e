"""config.json: facts out of good ones, and a named refusal of every bad one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from thalweg.checkpoint.bounds import BOUNDS
from thalweg.checkpoint.config import eos_ids, facts, generation_defaults, integer, read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import sizes
from thalweg.models.registry import family, resolve_architecture, windows

GOOD = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}


def save(path: Path, config: object) -> Path:
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def read_all(path: Path, overrides: dict | None = None) -> None:
    """Everything that looks at a configuration before a model is built."""
    config = read_config(path, overrides)
    facts(config, path)
    family(config)(config)
    eos_ids(path, config)


def test_facts_of_a_good_configuration(tmp_path):
    save_file({"a": torch.ones(10, dtype=torch.float16)}, tmp_path / "model.safetensors")
    got = facts(read_config(save(tmp_path, GOOD)), tmp_path)
    assert (got.architecture, got.dtype, got.layers, got.heads, got.kv_heads) == ("LlamaForCausalLM", "bfloat16", 2, 4, 2)
    assert (got.head_dim, got.vocab, got.max_len, got.weight_bytes) == (16, 100, 128, 20)


def test_dtype_comes_from_the_configuration_else_from_the_weights_else_float32(tmp_path):
    bare = {k: v for k, v in GOOD.items() if k != "torch_dtype"}
    assert facts(bare, tmp_path).dtype == "float32"
    save_file({"a": torch.ones(9, dtype=torch.float16), "b": torch.ones(1)}, tmp_path / "model.safetensors")
    assert facts(bare, tmp_path).dtype == "float16"
    assert facts({**bare, "dtype": "torch.bfloat16"}, tmp_path).dtype == "bfloat16"


def test_overrides_replace_keys(tmp_path):
    assert read_config(save(tmp_path, GOOD), {"vocab_size": 7})["vocab_size"] == 7


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("hidden_size", 0, "hidden_size: must be between"),
        ("hidden_size", -64, "hidden_size: must be between"),
        ("hidden_size", True, "hidden_size: must be an integer"),
        ("hidden_size", "64", "hidden_size: must be an integer, not '64'"),
        ("hidden_size", 64.0, "hidden_size: must be an integer"),
        ("hidden_size", 10**40, "hidden_size: must be between"),
        ("hidden_size", None, "hidden_size: missing"),
        ("num_hidden_layers", 10**6, "num_hidden_layers: must be between"),
        ("num_key_value_heads", 3, "multiple of num_key_value_heads"),
        ("num_attention_heads", [4], "num_attention_heads: must be an integer"),
        ("vocab_size", None, "vocab_size: missing"),
        ("max_position_embeddings", None, "max_position_embeddings: missing"),
        ("rms_norm_eps", "1e-5", "rms_norm_eps: must be a number"),
        ("rms_norm_eps", -1, "rms_norm_eps: must be between"),
        ("rope_theta", "big", "rope_theta: must be a number"),
        ("torch_dtype", "int3", "dtype: 'int3' is not one of"),
        ("torch_dtype", 16, "dtype: 16"),
        ("architectures", None, "architectures: must be a list"),
        ("architectures", [], "architectures: must be a list"),
        ("architectures", [1], "architectures: must be a list"),
        ("eos_token_id", "2", "eos_token_id: '2' is not a token id"),
        ("eos_token_id", [2, -1], "eos_token_id: -1 is not a token id"),
        ("eos_token_id", True, "eos_token_id: True is not"),
        ("tie_word_embeddings", 1, "tie_word_embeddings: must be true or false"),
        ("attention_bias", "no", "attention_bias: must be true or false"),
        ("hidden_act", 3, "hidden_act: must be text"),
        ("head_dim", 15, "head_dim: rotary positions need an even number"),
    ],
)
def test_a_bad_value_is_refused_by_its_key(key, value, words, tmp_path):
    with pytest.raises(CheckpointError, match=words):
        read_all(save(tmp_path, {**GOOD, key: value}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "must hold a JSON object, not list"),
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ('{"rope_theta": NaN}', "NaN is not a number"),
        ('{"rope_theta": -Infinity}', "-Infinity is not a number"),
        ('{"a": {"b": [1, 1e999]}}', r"a\.b\[1\]: inf is not a finite number"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_refused_by_its_path(text, words, tmp_path):
    with pytest.raises(CheckpointError, match=words) as e:
        read_config(save(tmp_path, text))
    assert "config.json" in str(e.value)


def test_overrides_are_checked_as_the_file_is(tmp_path):
    save(tmp_path, GOOD)
    with pytest.raises(CheckpointError, match="hf_overrides: rope_theta"):
        read_config(tmp_path, {"rope_theta": float("nan")})
    with pytest.raises(CheckpointError, match="vocab_size: must be an integer"):
        read_all(tmp_path, {"vocab_size": "many"})


def test_what_this_version_lacks_is_refused_in_words(tmp_path):
    for change, words in (
        ({"architectures": ["ArcticForCausalLM"]}, "'ArcticForCausalLM' is not supported.*`thalweg models`"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantised checkpoints \(awq\)"),
        ({"hidden_act": "relu"}, "hidden_act: unknown 'relu'; supported: "),
        ({"architectures": ["Qwen3ForCausalLM"], "layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ):
        with pytest.raises(UnsupportedModelError, match=words):
            read_all(save(tmp_path, {**GOOD, **change}))


@pytest.mark.parametrize(
    ("architecture", "change", "length"),
    [
        ("MistralForCausalLM", {"sliding_window": 32}, 32),
        ("MistralForCausalLM", {"sliding_window": 500}, 128),
        ("MistralForCausalLM", {"sliding_window": None}, 128),
        ("MistralForCausalLM", {"max_position_embeddings": 9000}, 4096),
        ("Qwen2ForCausalLM", {"sliding_window": 32, "max_window_layers": 1}, 128),
        ("Qwen2ForCausalLM", {"sliding_window": 32, "max_window_layers": 1, "use_sliding_window": True}, 32),
        (
            "Qwen3ForCausalLM",
            {"sliding_window": 32, "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
            32,
        ),
        ("LlamaForCausalLM", {}, 128),
    ],
)
def test_without_windows_layers_see_everything_and_the_context_is_no_longer_than_one(architecture, change, length, tmp_path):
    save(tmp_path, {**GOOD, "architectures": [architecture], **change})
    config = read_config(tmp_path, windows=windows)
    assert facts(config, tmp_path).max_len == length
    assert {s.kind for s in sizes.cache_specs(family(config)(config), "float32", "", length)} == {"full"}


def test_windows_stay_where_positions_are_scaled(tmp_path):
    scaled = {"sliding_window": 32, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    save(tmp_path, {**GOOD, "architectures": ["MistralForCausalLM"], **scaled})
    with pytest.raises(UnsupportedModelError, match="disable_sliding_window: not with positions scaled by yarn"):
        read_config(tmp_path, windows=windows)


def test_layer_types_must_name_every_layer():
    config = {**GOOD, "architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention"]}
    with pytest.raises(CheckpointError, match="layer_types: must be a list of 2"):
        family(config)(config)


def test_end_of_sequence_ids_are_those_of_both_files_once(tmp_path):
    save(tmp_path, GOOD)
    assert eos_ids(tmp_path, {"eos_token_id": [5, 2]}) == (5, 2)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 2], "temperature": 0.6}')
    assert eos_ids(tmp_path, GOOD) == (9, 2)
    assert generation_defaults(tmp_path)["temperature"] == 0.6
    assert eos_ids(tmp_path / "elsewhere", {}) == ()


def test_deciding_support_loads_no_tensor_framework():
    import subprocess
    import sys

    code = (
        "import sys, thalweg.checkpoint.config, thalweg.checkpoint.hub, thalweg.checkpoint.safetensors\n"
        "from thalweg.models.registry import resolve_architecture\n"
        "assert resolve_architecture({'architectures': ['LlamaForCausalLM']}) == 'LlamaForCausalLM'\n"
        "assert 'torch' not in sys.modules and 'huggingface_hub' not in sys.modules, 'too much is imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert resolve_architecture(GOOD) == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("key", "wrong"), [("head_dim", (1 << 16) + 1), ("num_nextn_predict_layers", 65), ("num_attention_heads", 1 << 17)]
)
def test_a_number_has_the_bounds_of_its_key_wherever_it_is_read(key: str, wrong: int) -> None:
    low, high = BOUNDS[key]
    assert integer({key: int(high)}, key) == high
    with pytest.raises(CheckpointError, match=f"{key}: must be between {low} and {high}"):
        integer({key: wrong}, key)
