"""Checkpoints with one tensor for all experts of a layer, as transformers 5 holds them, equal those with one for each."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rig import Rig
from safetensors.numpy import load_file, save_file
from zoo import load_reference, make_checkpoint

from thalweg.checkpoint.weights import open_weights
from thalweg.errors import CheckpointError


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_merged_experts_are_the_model_with_one_tensor_each(name, tmp_path):
    path = make_checkpoint(name, tmp_path / "apart", tokenizer=False)
    merged = tmp_path / "merged"
    load_reference(path, torch.float32).save_pretrained(merged, save_original_format=False)
    stored = load_file(merged / "model.safetensors")
    assert any(n.endswith("mlp.experts.gate_up_proj") for n in stored)
    assert not any(".experts.0." in n for n in stored)
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, 288, n).tolist() for n in (9, 20)]
    mine, theirs = (Rig(p).generate(prompts, 6, 8, 16) for p in (merged, path))
    assert [s.tokens for s in mine] == [s.tokens for s in theirs]
    assert [s.logprobs for s in mine] == [s.logprobs for s in theirs]


def test_rows_that_are_no_gate_and_up_are_refused_by_name(tmp_path):
    save_file({"model.layers.0.mlp.experts.gate_up_proj": np.zeros((2, 5, 4), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="gate_up_proj: 5 rows cannot be gate and up"):
        open_weights(tmp_path)


def test_experts_with_biases_beside_them_are_another_layout(tmp_path):
    """gpt-oss alternates rows of gate and up."""
    name = "model.layers.0.mlp.experts.gate_up_proj"
    save_file(
        {name: np.zeros((2, 4, 6), np.float32), f"{name}_bias": np.zeros((2, 6), np.float32)}, tmp_path / "model.safetensors"
    )
    assert open_weights(tmp_path).names == [name, f"{name}_bias"]


def test_experts_that_are_turned_are_another_layout(tmp_path):
    """Llama 4's: also where the hidden size is twice the inner one."""
    at = "model.layers.0.feed_forward.experts."
    save_file(
        {f"{at}gate_up_proj": np.zeros((2, 8, 8), np.float32), f"{at}down_proj": np.zeros((2, 4, 8), np.float32)},
        tmp_path / "model.safetensors",
    )
    assert open_weights(tmp_path).names == [f"{at}down_proj", f"{at}gate_up_proj"]
