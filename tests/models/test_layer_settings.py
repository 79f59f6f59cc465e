"""Settings that Gemma 4, Gemma 3n and Llama 4 have layer by layer: both spellings, and what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest
from test_sizes import config

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.registry import family


def read(name: str, **changes: Any) -> Any:
    said = {key: value for key, value in {**config(name), **changes}.items() if value is not ...}
    return family(said)(said)


def test_heads_of_layers_that_see_everything_have_two_spellings() -> None:
    """Published files have the older one."""
    older = {"per_layer_config": ..., "global_head_dim": 32, "num_global_key_value_heads": 1}
    assert read("gemma4", **older) == read("gemma4")
    plain = read("gemma4", **older, attention_k_eq_v=False)
    assert [layer.mixer.kv_heads for layer in plain.layers] == [2] * 6  # the number counts where values are keys


def test_a_first_release_of_llama_4_says_it_otherwise() -> None:
    assert read("llama4", attn_temperature_tuning=4, no_rope_layers=[], layer_types=...) == read("llama4")
    assert all(layer.mixer.grows is None for layer in read("llama4", attn_temperature_tuning=False).layers)


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("gemma4", {"use_bidirectional_attention": "all"}, "serves causal models"),
        ("gemma4", {"num_kv_shared_layers": 5}, "no layer of type full_attention is left"),
        ("gemma4", {"per_layer_config": {"2": {"head_dim": 32, "hidden_size": 8}}}, "'hidden_size' of layer 2"),
        ("gemma4", {"per_layer_config": {"full_attention": {}}}, "numbers of layers"),
        (
            "gemma3n",
            {"activation_sparsity_pattern": [0.5]},
            "activation_sparsity_pattern: must have an entry for each of the 6",
        ),
        ("gemma3n", {"intermediate_size": [80, 80]}, "intermediate_size: must have an entry"),
        ("llama4", {"no_rope_layers": [1, 0]}, "no_rope_layers: must have a number for each of the 5 layers"),
        ("llama4", {"moe_layers": "all"}, "moe_layers: must be a list"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name: str, changes: dict[str, Any], why: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=why):
        read(name, **changes)
