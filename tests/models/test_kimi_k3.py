"""Kimi K3 against its definition, which transformers does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from definitions import compare, compare_under_pressure
from kimi_k3_definition import CHANGES, TEXT, VOCAB, Definition, draw, save, write

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry


@pytest.mark.parametrize("platform", ["cpu", pytest.param("reference", marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", CHANGES)
def test_tokens_and_logprobs_are_those_of_the_definition(change: str, platform: str, tmp_path: Path) -> None:
    compare(tmp_path, Definition(*write(tmp_path, change)), VOCAB, platform)


@pytest.mark.slow
def test_chunks_preemption_and_prefix_hits_change_nothing(tmp_path: Path) -> None:
    compare_under_pressure(tmp_path, Definition(*write(tmp_path, "whole")), VOCAB, mamba_block_size=8)


@pytest.mark.slow
def test_experts_as_published_files_store_them(tmp_path: Path) -> None:
    """MXFP4: codes of 4 bits, the first in the low half of a byte, and a power of two for each 32."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    sizes = {"moe_intermediate_size": 64, "routed_expert_hidden_size": 32}
    config, tensors = {**TEXT, **sizes}, draw({**TEXT, **sizes})
    g, held = torch.Generator().manual_seed(1), dict(tensors)
    for name in [n for n in tensors if ".experts." in n]:
        codes = torch.randint(0, 16, held.pop(name).shape, generator=g)
        powers = torch.randint(122, 126, (codes.shape[0], codes.shape[1] // 32), generator=g)
        tensors[name] = values[codes] * 2.0 ** (powers - 127).repeat_interleave(32, 1)
        at = name.removesuffix("weight")
        held[f"{at}weight_packed"] = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
        held[f"{at}weight_scale"] = powers.to(torch.uint8)
    group = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True, "dynamic": False}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": group, "input_activations": None}},
        "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|down)_proj.*", "lm_head",
                   "re:.*routed_expert_.*", "re:.*_res_proj.*", "re:.*block_sparse_moe\\.gate"],
    }  # fmt: skip
    save(tmp_path, config, held)
    compare_under_pressure(tmp_path, Definition({**TEXT, **sizes}, tensors), VOCAB, mamba_block_size=8)


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
