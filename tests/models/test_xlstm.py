"""xLSTM with one tensor for several matrices, which transformers cannot initialise, and settings that are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rig import Rig
from safetensors.torch import load_file, save_file
from zoo import edit_config, make_checkpoint

from thalweg.checkpoint.config import read_config
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models import registry

JOINED = {
    "mlstm_layer.qkv_opreact.weight": [f"mlstm_layer.{part}.weight" for part in ("q", "k", "v", "ogate_preact")],
    "mlstm_layer.ifgate_preact.weight": ["mlstm_layer.igate_preact.weight", "mlstm_layer.fgate_preact.weight"],
    "mlstm_layer.ifgate_preact.bias": ["mlstm_layer.igate_preact.bias", "mlstm_layer.fgate_preact.bias"],
    "ffn.proj_up_gate_z.weight": ["ffn.proj_up_gate.weight", "ffn.proj_up.weight"],
}


def test_joined_matrices_compute_the_same(tmp_path):
    apart, joined = (
        make_checkpoint("xlstm", tmp_path, tokenizer=False),
        make_checkpoint("xlstm", tmp_path / "j", tokenizer=False),
    )
    tensors = load_file(joined / "model.safetensors")
    for i in range(3):
        for name, parts in JOINED.items():
            tensors[f"backbone.blocks.{i}.{name}"] = torch.cat([tensors.pop(f"backbone.blocks.{i}.{part}") for part in parts])
    save_file(tensors, joined / "model.safetensors", {"format": "pt"})
    edit_config(joined, weight_mode="fused")
    prompts = [np.random.default_rng(i).integers(0, 288, 12).tolist() for i in range(2)]
    one, other = (Rig(path, platform="cpu").generate(prompts, 6, chunk=5, budget=9) for path in (apart, joined))
    assert [s.tokens for s in one] == [s.tokens for s in other]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"use_bias": True}, UnsupportedModelError, "use_bias"),
        ({"add_out_norm": False}, UnsupportedModelError, "add_out_norm"),
        ({"weight_mode": "odd"}, UnsupportedModelError, "weight_mode: unknown 'odd'"),
        ({"num_heads": 3}, CheckpointError, "num_heads: 3 do not divide"),
    ],
)
def test_settings_without_an_implementation_are_refused(changes, error, words, tmp_path):
    config = {**read_config(make_checkpoint("xlstm", tmp_path, tokenizer=False)), **changes}
    with pytest.raises(error, match=words):
        registry.family(config)(config)
