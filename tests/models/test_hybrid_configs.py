"""Configurations of recurrent families as published files have them: older spellings, what is left out, what cannot be."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest
from zoo import ALL, SMALL, make_checkpoint

from thalweg.checkpoint.config import read_config
from thalweg.checkpoint.spelling import canonical_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry
from thalweg.models.spec import MLP, Mamba, Mamba2, ModelSpec, MoE, UngatedMLP


def written(path: Path, name: str, architecture: str, without: tuple[str, ...] = (), **changes: Any) -> Path:
    """A folder with config.json, as Python writes it."""
    kind, different = ALL[name]
    config = {**kind(**{**SMALL, **different}).to_dict(), "architectures": [architecture], **changes}
    (path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in without}))
    return path


def spec(path: Path) -> ModelSpec:
    config = read_config(path)
    return registry.family(config)(config)


def kinds(made: ModelSpec) -> list[str]:
    parts = [(layer.mixers[0] if layer.mixers else layer.ffn) for layer in made.layers]
    return [type(part).__name__ for part in parts]


def test_layers_of_nemotron_h_by_letters_and_without_their_number(tmp_path):
    newer = spec(written(tmp_path, "nemotron-h", "NemotronHForCausalLM"))
    older = spec(written(
        tmp_path, "nemotron-h", "NemotronHForCausalLM", ("layers_block_type", "layer_types", "num_hidden_layers"),
        hybrid_override_pattern="ME*-M*E",
    ))  # fmt: skip
    assert kinds(older) == ["Mamba2", "MoE", "Attention", "UngatedMLP", "Mamba2", "Attention", "MoE"]
    assert older == newer
    assert all(mixer.rope is None for _, mixer in older.mixers)


def test_a_step_without_an_upper_limit_is_written_in_three_ways(tmp_path):
    """By older transformers as Infinity, which JSON has not; by newer ones as an object; or as null."""
    path = written(tmp_path, "mamba2", "Mamba2ForCausalLM", time_step_limit=[0.25, inf])
    assert "Infinity]" in (path / "config.json").read_text()
    for high in (inf, {"__float__": "Infinity"}, None):
        (_, mixer), *_ = spec(written(tmp_path, "mamba2", "Mamba2ForCausalLM", time_step_limit=[0.25, high])).mixers
        assert isinstance(mixer, Mamba2)
        assert mixer.limits == (0.25, inf)
    with pytest.raises(CheckpointError, match="not a finite number"):
        spec(written(tmp_path, "mamba2", "Mamba2ForCausalLM", layer_norm_epsilon=inf))


def test_granites_layers_by_their_older_names_and_without_experts(tmp_path):
    made = spec(written(
        tmp_path, "granite-hybrid", "GraniteMoeHybridForCausalLM", layer_types=["mamba", "attention"], num_local_experts=0,
    ))  # fmt: skip
    assert kinds(made) == ["Mamba2", "Attention"]
    assert all(isinstance(layer.ffn, MLP) and layer.ffn.name == "shared_mlp" for layer in made.layers)


def test_lfm2_by_its_first_names(tmp_path):
    made = spec(written(
        tmp_path, "lfm2", "Lfm2ForCausalLM", ("layer_types", "intermediate_size", "tie_word_embeddings"), block_ff_dim=100,
        full_attn_idxs=[2], tie_embedding=False, block_auto_adjust_ff_dim=False,
    ))  # fmt: skip
    assert kinds(made) == ["ShortConv", "ShortConv", "Attention", "ShortConv"]
    assert made.layers[0].ffn == made.layers[2].ffn
    assert isinstance(made.layers[0].ffn, MLP)
    assert (made.layers[0].ffn.inner, made.tied) == (100, False)


def test_models_without_attention_name_no_length_and_no_heads(tmp_path):
    keys = ("max_position_embeddings", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    config = read_config(written(tmp_path, "mamba", "MambaForCausalLM", keys, time_step_rank="auto"))
    assert config["max_position_embeddings"] == 32_768
    (_, mixer), *_ = registry.family(config)(config).mixers
    assert isinstance(mixer, Mamba)
    assert (mixer.inner, mixer.rank) == (96, 3)


def test_experts_of_nemotron_see_a_projection_of_their_token():
    read = canonical_config(
        {**ALL["nemotron-h"][0](**{**SMALL, **ALL["nemotron-h"][1]}).to_dict(), "architectures": ["NemotronHForCausalLM"]}
    )
    part = registry.family(read)(read).layers[1].ffn
    assert isinstance(part, MoE)
    assert isinstance(part.shared, UngatedMLP)
    shapes = {s.name.split("mixer.")[1]: s.shape for s in part.weights("", 48)["gate_up"]["weight"].sources}
    assert shapes["experts.0.up_proj.weight"] == (24, 32)
    with pytest.raises(ValueError, match="without gates"):
        MoE(experts=2, top_k=1, inner=8, gated=False, fused=("a", "b"))


@pytest.mark.parametrize(
    ("name", "architecture", "changes", "error", "words"),
    [
        (
            "nemotron-h",
            "NemotronHForCausalLM",
            {"layers_block_type": ["mamba"] * 6 + ["conv"]},
            UnsupportedModelError,
            "'conv'",
        ),
        ("nemotron-h", "NemotronHForCausalLM", {"n_groups": 4}, CheckpointError, "n_groups"),
        ("nemotron-h", "NemotronHForCausalLM", {"conv_kernel": 1}, CheckpointError, "conv_kernel"),
        ("nemotron-h", "NemotronHForCausalLM", {"mlp_hidden_act": "tanh"}, UnsupportedModelError, "mlp_hidden_act"),
        ("mamba2", "Mamba2ForCausalLM", {"num_heads": 5}, CheckpointError, "num_heads"),
        ("mamba2", "Mamba2ForCausalLM", {"time_step_limit": [1]}, CheckpointError, "time_step_limit"),
        ("mamba", "MambaForCausalLM", {"hidden_act": "relu"}, UnsupportedModelError, "hidden_act"),
        ("jamba", "JambaForCausalLM", {"attn_layer_offset": 3}, CheckpointError, "attn_layer_offset"),
        ("bamba", "BambaForCausalLM", {"attn_layer_indices": [7]}, CheckpointError, "attn_layer_indices"),
        ("bamba", "BambaForCausalLM", {"mamba_d_head": 5}, CheckpointError, "mamba_d_head"),
        ("falcon-h1", "FalconH1ForCausalLM", {"ssm_multipliers": [1.0]}, CheckpointError, "ssm_multipliers"),
        ("granite-hybrid", "GraniteMoeHybridForCausalLM", {"position_embedding_type": "alibi"}, UnsupportedModelError, "alibi"),
        ("lfm2", "Lfm2ForCausalLM", {"layer_types": None, "full_attn_idxs": [9]}, CheckpointError, "full_attn_idxs"),
        ("olmo-hybrid", "OlmoHybridForCausalLM", {"linear_num_key_heads": 3}, CheckpointError, "linear_num_value_heads"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_its_field(name, architecture, changes, error, words, tmp_path):
    with pytest.raises(error, match=words):
        spec(written(tmp_path, name, architecture, **changes))


def test_zamba_keeps_its_shared_block_once_or_under_every_layer(tmp_path):
    """Copies of the block are skipped, and layers have the types of `attn_layer_period` after the first three."""
    path = make_checkpoint("zamba", tmp_path, tokenizer=False)
    config = read_config(path)
    spec = registry.family(config)(config)
    assert [type(layer.mixer).__name__ for layer in spec.layers if layer.mixer].count("Attention") == 2
    assert spec.rename("model.layers.2.shared_transf.self_attn.q_proj.weight") is not None
    assert spec.rename("model.layers.4.shared_transf.self_attn.q_proj.weight") is None
    for changes, words in (
        ({"mamba_proj_bias": True}, "mamba_proj_bias"),
        ({"attention_hidden_size": 48}, "attention_hidden_size: must be twice"),
        ({"layers_block_type": ["odd"] * 5, "layer_types": None}, "layers_block_type"),
    ):
        with pytest.raises(UnsupportedModelError, match=words):
            registry.family(config)({**config, **changes})
