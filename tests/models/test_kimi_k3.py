"""Kimi K3 against its definition, which transformers does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from definitions import compare, compare_under_pressure
from kimi_k3_definition import CHANGES, TEXT, VOCAB, Definition, write

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry


@pytest.mark.parametrize("platform", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", CHANGES)
def test_tokens_and_logprobs_are_those_of_the_definition(change: str, platform: str, tmp_path: Path) -> None:
    compare(tmp_path, Definition(*write(tmp_path, change)), VOCAB, platform)


@pytest.mark.slow
def test_chunks_preemption_and_prefix_hits_change_nothing(tmp_path: Path) -> None:
    compare_under_pressure(tmp_path, Definition(*write(tmp_path, "whole")), VOCAB, mamba_block_size=8)


@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        ({"mla_use_nope": False}, UnsupportedModelError, "mla_use_nope"),
        ({"linear_attn_config": None}, CheckpointError, "linear_attn_config: must be"),
        ({"linear_attn_config": {**TEXT["linear_attn_config"], "odd": 1}}, UnsupportedModelError, "'odd'"),
        ({"hidden_act": "relu"}, UnsupportedModelError, "hidden_act"),
        ({"activation_situ_beta": -1.0}, CheckpointError, "activation_situ_beta"),
    ],
)
def test_what_is_refused(said: dict[str, object], error: type[Exception], match: str) -> None:
    config = {**TEXT, **said, "architectures": ["KimiK3LinearForCausalLM"]}
    with pytest.raises(error, match=match):
        registry.family(config)(config)
